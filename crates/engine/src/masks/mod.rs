//! The threads that evaluate masks, so that no step waits for one. They are few and have a low priority, so
//! that they run on processors that the executor leaves idle. A thread that hangs is abandoned. Does not
//! know which sequences need the masks, and when.

mod queue;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::constraint::ConstraintError;
use throng_core::engine::{EngineConfig, Input};
use throng_core::request::{RequestId, TenantId};
use throng_core::scheduling::batch::ScheduledBatch;
use throng_core::scheduling::masks::{MaskPace, SequenceMasks};
use throng_core::scheduling::scheduler::{MaskReport, SLOW_MASKS};
use throng_core::time::Nanos;
use tracing::warn;

use crate::message::{Inbox, Message};
use queue::{Lane, MaskQueue};

/// Maximum processor time of a mask, beyond which its request fails.
const MAX_MASK_TIME: Nanos = Nanos::from_ms(1_000);

/// Default number of threads for quick masks, unless there are fewer processors.
const N_QUICK_THREADS: usize = 2;

/// Number of processors for each thread for slow masks.
const PROCESSORS_PER_SLOW_THREAD: usize = 8;

/// Time after the engine stops for threads to finish their masks.
const STOP_TIME: Duration = Duration::from_secs(1);

/// The threads, and the masks that wait for them. Dropping it ends the threads.
#[derive(Debug)]
pub struct MaskThreads {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
    n_started: u64,
    /// Maximum number of hanging threads that are replaced.
    max_abandoned: usize,
    n_of_lane: [usize; 2],
}

#[derive(Debug)]
struct Pool {
    state: Mutex<PoolState>,
    /// Notified when there may be masks for threads of a lane, or when the engine stops.
    has_masks: [Condvar; 2],
    has_ended: Condvar,
    vocabulary_size: u32,
    lower_priority: Option<fn()>,
    inbox: Inbox,
}

#[derive(Debug, Default)]
struct PoolState {
    queue: MaskQueue,
    /// Request and lane of the masks that each busy thread evaluates.
    busy: HashMap<u64, (RequestId, Lane)>,
    /// Busy threads that were replaced: they end when their evaluation returns.
    abandoned: HashSet<u64>,
    n_alive: usize,
    is_closing: bool,
}

impl MaskThreads {
    /// Creates the pool without threads, which start with the first masks.
    pub fn new(config: &EngineConfig, vocabulary_size: u32, inbox: Inbox) -> Self {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        let n_of_lane = match config.max_mask_threads as usize {
            0 => [N_QUICK_THREADS.min(n_processors), n_processors.div_ceil(PROCESSORS_PER_SLOW_THREAD)],
            n => [n, n],
        };
        let pool = Pool {
            state: Mutex::default(),
            has_masks: Default::default(),
            has_ended: Condvar::new(),
            vocabulary_size,
            lower_priority: config.lower_priority,
            inbox,
        };
        Self {
            pool: Arc::new(pool),
            threads: Vec::new(),
            n_started: 0,
            max_abandoned: config.max_abandoned_threads as usize,
            n_of_lane,
        }
    }

    /// Notes a request that has a constraint.
    pub fn open(&self, request: RequestId, tenant: &TenantId) {
        self.pool.lock().queue.open(request, tenant, Instant::now());
    }

    /// Removes a request that has ended. A thread that evaluates one of its masks may hang and is replaced.
    pub fn close(&mut self, request: RequestId) {
        let mut left_behind = Vec::new();
        {
            let mut state = self.pool.lock();
            state.queue.close(request);
            let PoolState { busy, abandoned, .. } = &mut *state;
            for (&thread, &(of, lane)) in &*busy {
                if of == request && abandoned.len() < self.max_abandoned && abandoned.insert(thread) {
                    left_behind.push(lane);
                }
            }
        }
        left_behind.into_iter().for_each(|lane| self.start(lane));
    }

    /// Queues the masks of a batch for evaluation.
    pub fn evaluate_batch(&mut self, batch: &ScheduledBatch) {
        for masks in batch.sequences().iter().filter_map(|scheduled| scheduled.masks.as_ref()) {
            self.evaluate(masks);
        }
    }

    /// Queues masks for evaluation, unless they were queued before.
    pub fn evaluate(&mut self, masks: &Arc<SequenceMasks>) {
        if !masks.queue() {
            return;
        }
        if self.n_started == 0 {
            (0..self.n_of_lane[0]).for_each(|_| self.start(Lane::Quick));
            (0..self.n_of_lane[1]).for_each(|_| self.start(Lane::Slow));
        }
        let mut state = self.pool.lock();
        if state.n_alive == 0 {
            drop(state);
            masks.fail(ConstraintError::Failed);
            self.pool.report(masks, Nanos::default(), Nanos::default());
            return;
        }
        state.queue.push(Arc::clone(masks), Instant::now());
        drop(state);
        // A thread for slow masks takes quick ones as well.
        self.pool.has_masks.iter().for_each(Condvar::notify_one);
    }

    fn start(&mut self, lane: Lane) {
        let (pool, number) = (Arc::clone(&self.pool), self.n_started);
        self.n_started += 1;
        self.pool.lock().n_alive += 1;
        let thread = std::thread::Builder::new().name(format!("throng-masks-{number}"));
        match thread.spawn(move || pool.run(number, lane)) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.pool.lock().n_alive -= 1;
                warn!(%error, "no thread for token constraints");
            }
        }
        self.threads.retain(|thread| !thread.is_finished());
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.is_closing = true;
        state.queue.clear();
        self.pool.has_masks.iter().for_each(Condvar::notify_all);
        let is_busy = |state: &mut PoolState| state.n_alive > state.abandoned.len();
        let waited = self.pool.has_ended.wait_timeout_while(state, STOP_TIME, is_busy);
        drop(waited);
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            // Panics are contained in it.
            let _ = thread.join();
        }
    }
}

/// Counts a thread until it ends, also by a panic.
struct Alive<'p>(&'p Pool, u64);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.n_alive -= 1;
        state.abandoned.remove(&self.1);
        drop(state);
        self.0.has_ended.notify_all();
    }
}

impl Pool {
    fn run(&self, number: u64, lane: Lane) {
        let _alive = Alive(self, number);
        // Slow masks take a smaller part of the processors.
        for _ in 0..if lane == Lane::Slow { 2 } else { 1 } {
            self.lower_priority.iter().for_each(|lower_priority| lower_priority());
        }
        while let Some(masks) = self.next(number, lane) {
            let began = thread_time();
            let took = || Nanos(thread_time().0.saturating_sub(began.0));
            let pace = || match took() {
                took if took < SLOW_MASKS => MaskPace::Continue,
                took if took <= MAX_MASK_TIME => MaskPace::Stop,
                _ => MaskPace::Exceeded,
            };
            let is_awaited = masks.evaluate(self.vocabulary_size, pace).unwrap_or(false);
            let (took, request) = (took(), masks.sequence().request);
            let mut state = self.lock();
            state.busy.remove(&number);
            let charged = state.queue.note(request, took, is_awaited, Instant::now());
            let is_replaced = state.abandoned.contains(&number);
            drop(state);
            if is_awaited || took >= SLOW_MASKS {
                self.report(&masks, took, charged.unwrap_or_default());
            }
            if is_replaced {
                return;
            }
        }
    }

    /// Waits for masks; `None` when the engine stops.
    fn next(&self, number: u64, lane: Lane) -> Option<Arc<SequenceMasks>> {
        let mut state = self.lock();
        loop {
            if state.is_closing {
                return None;
            }
            let next = state.queue.pop(lane, Instant::now());
            if lane == Lane::Quick && state.queue.has_slow() {
                // It may have found them among the quick ones.
                self.has_masks[Lane::Slow as usize].notify_all();
            }
            if let Some(masks) = next {
                state.busy.insert(number, (masks.sequence().request, lane));
                return Some(masks);
            }
            state = self.has_masks[lane as usize].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn report(&self, masks: &SequenceMasks, took: Nanos, charged: Nanos) {
        let (sequence, number) = (masks.sequence(), masks.number());
        let report = MaskReport { sequence, number, took, charged };
        // Without an engine nobody needs it.
        let _ = self.inbox.send(Message::Input(Input::MasksEvaluated(report)));
    }

    /// Locks the state; no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Processor time of this thread, which is the cost of masks however busy the processor is.
fn thread_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
