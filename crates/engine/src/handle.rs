//! The way in: a handle that many threads share. Decides at once what may enter and never waits for a step.
//! Refuses to know how steps run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::admission::{Admission, QueueBound};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::request::{Request, RequestId};
use throng_core::time::{Nanos, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::config::EngineConfig;
use crate::engine::{EngineLoop, Message, Submission, make_guarded};
use crate::error::{EngineError, SubmitError};
use crate::outbox::Outlet;
use crate::stats::EngineStats;
use crate::step_log::{StepLog, StepRecord};
use crate::stream::{StreamLink, TokenStream};

/// The engine thread shows this often that it gets on, also when nothing is to be done.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// An engine thread that was silent for longer does not get on at present.
const MAX_SILENCE: Nanos = Nanos::from_ms(1_500);

/// An engine thread that was silent for longer is not expected to get on again. Making a new executor takes its time.
const MAX_ABSENCE: Nanos = Nanos::from_ms(60_000);

/// Fewest events of each continuation that may wait for a reader before its request is paused.
const LEAST_BUFFERED_STEPS: u64 = 8;

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

/// Whether the engine takes and runs requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineState {
    /// It does both.
    Running,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It has no executor and could not get another; it takes nothing.
    Unhealthy,
    /// It has stopped.
    Stopped,
}

/// What handles and the engine thread share. No lock is held for longer than a copy takes.
#[derive(Debug)]
pub struct Shared {
    origin: Instant,
    admission: Admission,
    capacity: ExecutorCapacity,
    max_buffered_events: u64,
    /// Most tokens of one continuation that a step settles.
    max_step_tokens: u64,
    next_request: AtomicU64,
    state: Mutex<EngineState>,
    /// When the engine thread last showed that it gets on, in nanoseconds since the origin.
    last_beat_ns: AtomicU64,
    queue: Mutex<QueueBound>,
    stats: Mutex<EngineStats>,
    log: Mutex<StepLog>,
}

impl Shared {
    /// Time since the engine's start.
    pub fn now(&self) -> Timestamp {
        Timestamp::default() + Nanos::from(self.origin.elapsed())
    }

    /// What the first executor could hold; those that follow must be able to as well.
    pub fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    pub fn state(&self) -> EngineState {
        *lock(&self.state)
    }

    /// Moves on to `state`; there is no way back to an earlier one.
    pub fn advance_state(&self, state: EngineState) {
        let mut current = lock(&self.state);
        if (*current as u8) < state as u8 {
            *current = state;
        }
    }

    /// Notes that the engine thread gets on.
    pub fn beat(&self) {
        self.last_beat_ns.store(self.now().as_ns(), Ordering::Relaxed);
    }

    /// How long the engine thread has been silent.
    fn silence(&self) -> Nanos {
        self.now().since(Timestamp::from_ns(self.last_beat_ns.load(Ordering::Relaxed)))
    }

    pub fn leave_queue(&self, prompt_tokens: usize) {
        lock(&self.queue).leave(prompt_tokens);
    }

    pub fn set_stats(&self, stats: EngineStats) {
        *lock(&self.stats) = stats;
    }

    pub fn log_step(&self, record: StepRecord) {
        lock(&self.log).push(record);
    }
}

/// What the locks guard is whole after every statement, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way in. Clones share one engine; it stops when the last is gone and what it had is finished.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    inbox: Inbox,
    thread: Arc<JoinHandle<()>>,
    _stop: Arc<StopOnDrop>,
}

type Inbox = Sender<Message>;

/// Tells the engine that no handle is left.
#[derive(Debug)]
struct StopOnDrop(Inbox);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Drain { limit: None, done: None });
    }
}

impl Engine {
    /// Starts an engine. `make_executor` is called once now, and again whenever an executor is lost.
    ///
    /// # Errors
    /// When the first executor cannot be made, or there is no thread.
    pub fn start(
        config: EngineConfig,
        make_executor: impl FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send + 'static,
    ) -> Result<EngineHandle, EngineError> {
        let mut make_executor = Box::new(make_executor);
        let executor = make_guarded(&mut *make_executor)?;
        let capacity = executor.capacity();
        let max_queued_tokens = usize::try_from(config.scheduler.max_queued_tokens).unwrap_or(usize::MAX);
        let queue = QueueBound::new(config.scheduler.max_queued_requests as usize, max_queued_tokens);
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            admission: Admission::new(capacity),
            capacity,
            max_buffered_events: u64::from(config.max_buffered_events.max(2)),
            max_step_tokens: u64::from(config.scheduler.max_draft_tokens) + 1,
            next_request: AtomicU64::new(0),
            state: Mutex::new(EngineState::Running),
            last_beat_ns: AtomicU64::new(0),
            queue: Mutex::new(queue),
            stats: Mutex::new(EngineStats::default()),
            log: Mutex::new(StepLog::new(config.max_logged_steps as usize)),
        });
        let (inbox, messages) = channel();
        let engine =
            EngineLoop::new(config, make_executor, executor, Arc::clone(&shared), inbox.clone(), messages)?;
        shared.beat();
        let thread = std::thread::Builder::new().name("throng-engine".into()).spawn(move || engine.run())?;
        let stop = Arc::new(StopOnDrop(inbox.clone()));
        Ok(EngineHandle { shared, inbox, thread: Arc::new(thread), _stop: stop })
    }
}

impl EngineHandle {
    /// An id no other request of this engine has.
    pub fn next_request_id(&self) -> RequestId {
        RequestId(self.shared.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a request in, with an id from [`Self::next_request_id`], or says at once why not.
    ///
    /// # Errors
    /// When the request can never run, the queue is full, or the engine takes nothing new.
    pub fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        self.shared.admission.check(&request)?;
        match self.state() {
            EngineState::Draining | EngineState::Stopped => return Err(SubmitError::Draining),
            _ if self.is_lost() => return Err(SubmitError::Unhealthy),
            _ => {}
        }
        let n_queued_tokens = request.n_queued_tokens();
        lock(&self.shared.queue).enter(n_queued_tokens)?;
        let (id, n) = (request.id, request.continuations().count() as u32);
        let n_events = 1 + u64::from(n) * (u64::from(request.sampling.max_tokens) + 1);
        let high_mark = self.shared.max_buffered_events.max(LEAST_BUFFERED_STEPS * u64::from(n));
        // The step that reaches the mark may bring each continuation as many tokens as a step settles, and its end.
        let room = high_mark + 1 + (self.shared.max_step_tokens + 1) * u64::from(n);
        let (events, receiver) = mpsc::channel(n_events.min(room) as usize);
        let link = Arc::new(StreamLink::new(high_mark as usize));
        let outlet = Outlet {
            events,
            link: Arc::clone(&link),
            tenant: request.tenant.clone(),
            paused_since: None,
            queued_tokens: Some(n_queued_tokens),
            n_live: n,
            prompt_reports: Vec::new(),
        };
        let submission = Submission { request, arrived: self.shared.now(), outlet };
        let shared = Arc::clone(&self.shared);
        let stream = TokenStream::new(id, n, receiver, link, shared, self.inbox.clone());
        match self.inbox.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Unhealthy),
        }
    }

    /// Whether any request could enter now: for those who would first spend work on making one.
    ///
    /// # Errors
    /// What [`Self::submit`] would say to a prompt of one token.
    pub fn check_room(&self) -> Result<(), SubmitError> {
        match self.state() {
            EngineState::Running => Ok(lock(&self.shared.queue).check(1)?),
            EngineState::Draining | EngineState::Stopped => Err(SubmitError::Draining),
            EngineState::Unhealthy => Err(SubmitError::Unhealthy),
        }
    }

    /// What it can hold. `max_sequence_tokens` is what a request may truly use: no more than all KV blocks hold.
    pub fn capacity(&self) -> ExecutorCapacity {
        let max_sequence_tokens = self.shared.admission.max_sequence_tokens() as u32;
        ExecutorCapacity { max_sequence_tokens, ..self.shared.capacity }
    }

    /// Whether it takes and runs requests.
    pub fn state(&self) -> EngineState {
        // Looked at first: a thread that stops as foreseen says so before it ends.
        let is_finished = self.thread.is_finished();
        match self.shared.state() {
            EngineState::Running | EngineState::Draining if is_finished => EngineState::Unhealthy,
            state => state,
        }
    }

    /// Whether it can run requests; a draining engine still can. Tells within two seconds that the engine thread has
    /// died or does not get on.
    pub fn is_healthy(&self) -> bool {
        let runs = matches!(self.state(), EngineState::Running | EngineState::Draining);
        runs && self.shared.silence() <= MAX_SILENCE
    }

    /// Whether it will not run requests again: it is unhealthy for good, or has not got on for a minute.
    pub fn is_lost(&self) -> bool {
        match self.state() {
            EngineState::Unhealthy => true,
            EngineState::Stopped => false,
            EngineState::Running | EngineState::Draining => self.shared.silence() > MAX_ABSENCE,
        }
    }

    /// A look at it, as of the end of the last step.
    pub fn stats(&self) -> EngineStats {
        let mut stats = *lock(&self.shared.stats);
        let queue = lock(&self.shared.queue);
        stats.scheduler.queued_requests = queue.n_requests();
        stats.scheduler.queued_tokens = queue.n_tokens();
        stats
    }

    /// The latest steps, oldest first.
    pub fn step_log(&self) -> Vec<StepRecord> {
        lock(&self.shared.log).records()
    }

    /// Takes nothing new, finishes what is there for at most `limit`, then fails the rest and stops. Returns
    /// when the engine has stopped.
    pub async fn drain(&self, limit: Duration) {
        self.shared.advance_state(EngineState::Draining);
        let (done, stopped) = oneshot::channel();
        if self.inbox.send(Message::Drain { limit: Some(limit), done: Some(done) }).is_ok() {
            // An error means that the engine has stopped as well.
            let _ = stopped.await;
        }
    }

    /// Stops now: fails everything that is not finished. Does not wait for it.
    pub fn shutdown(&self) {
        self.shared.advance_state(EngineState::Draining);
        let _ = self.inbox.send(Message::Drain { limit: Some(Duration::ZERO), done: None });
    }
}
