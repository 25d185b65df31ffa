//! One generation with several readers, each at its own pace: its events are kept, so that a reader that
//! joins late reads them from the beginning. Does not know requests, keys and caches.
//!
//! There is no task: a reader that needs the next event polls the generation. So the engine's flow control
//! follows the fastest reader, and the generation ends when the last reader is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use throng_core::request::FinishReason;
use throng_fleet::replica::{Generation, ReplicaError, ReplicaEvent, TraceSource};

use super::replay::event_bytes;

/// Maximum number of events by which the fastest reader may lead the slowest if not all events are kept.
const MAX_LEAD_EVENTS: usize = 64;

/// Future of a generation, ready when a replica has accepted or refused the request.
pub type Starting = BoxFuture<'static, Result<Box<dyn Generation>, ReplicaError>>;

/// Bounds on bytes of kept events: for one generation, and for all together.
#[derive(Debug)]
pub(super) struct LogBound {
    pub max_bytes: usize,
    pub max_total_bytes: usize,
    pub total_bytes: AtomicUsize,
}

/// A generation with its readers.
pub(super) struct SharedGeneration {
    state: Mutex<State>,
    readers: Arc<Readers>,
    bound: Arc<LogBound>,
}

struct State {
    source: Source,
    log: VecDeque<ReplicaEvent>,
    /// Number of events removed from the log's front; 0 while it is complete.
    n_dropped: usize,
    n_bytes: usize,
    /// Whether the log is complete and stays so, so that readers may join.
    is_open: bool,
    members: BTreeMap<u64, Member>,
    next_member: u64,
    /// For each continuation, whether its text has ended although the engine would continue.
    stopped: Vec<bool>,
    n_live: usize,
}

enum Source {
    Starting(Starting),
    Running(Box<dyn Generation>),
    Refused(ReplicaError),
    Ended,
}

struct Member {
    /// Number of events that it has read.
    n_read: usize,
    /// For each continuation, whether the reader needs no more of it.
    left: Vec<bool>,
}

/// Wakers of all waiting readers, of which any may have polled last.
#[derive(Default)]
struct Readers(Mutex<BTreeMap<u64, Waker>>);

impl Wake for Readers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_values().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of polling for the next event.
#[derive(Debug)]
pub(super) struct Step {
    /// The next event; `None` after the last.
    pub event: Option<ReplicaEvent>,
    /// The complete answer, for the first reader of its last event.
    pub whole: Option<Box<[ReplicaEvent]>>,
}

impl SharedGeneration {
    /// Creates the generation of a request with `n` continuations, with its first reader, number 0.
    pub fn new(starting: Starting, n: u32, bound: Arc<LogBound>) -> Self {
        let n = n as usize;
        let state = State {
            source: Source::Starting(starting),
            log: VecDeque::new(),
            n_dropped: 0,
            n_bytes: 0,
            is_open: true,
            members: BTreeMap::from([(0, Member { n_read: 0, left: vec![false; n] })]),
            next_member: 1,
            stopped: vec![false; n],
            n_live: n,
        };
        Self { state: Mutex::new(state), readers: Arc::default(), bound }
    }

    /// Adds a reader, which reads all events from the beginning, and returns its number; `None` if that is
    /// no longer possible.
    pub fn join(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let id = state.next_member;
        let left = vec![false; state.stopped.len()];
        state.is_open.then(|| {
            state.next_member += 1;
            state.members.insert(id, Member { n_read: 0, left });
            id
        })
    }

    /// Polls whether a replica has accepted the request.
    pub fn poll_started(&self, id: u64, cx: &mut Context<'_>) -> Poll<Result<(), ReplicaError>> {
        let mut state = lock(&self.state);
        let Source::Starting(starting) = &mut state.source else {
            return Poll::Ready(match &state.source {
                Source::Refused(error) => Err(error.clone()),
                _ => Ok(()),
            });
        };
        self.wait(id, cx);
        let waker = Waker::from(self.readers.clone());
        let Poll::Ready(result) = starting.poll_unpin(&mut Context::from_waker(&waker)) else {
            return Poll::Pending;
        };
        let started = result.as_ref().map(|_| ()).map_err(ReplicaError::clone);
        state.is_open &= started.is_ok();
        state.source = result.map_or_else(Source::Refused, Source::Running);
        self.wake_others(id, state);
        Poll::Ready(started)
    }

    /// Polls for the next event of a reader.
    pub fn poll_next(&self, id: u64, cx: &mut Context<'_>) -> Poll<Step> {
        let mut state = lock(&self.state);
        if let Some(event) = state.logged(id) {
            let was_full = state.is_full();
            state.trim(&self.bound);
            if was_full && !state.is_full() {
                self.wake_others(id, state);
            }
            return Poll::Ready(Step { event: Some(event), whole: None });
        }
        self.wait(id, cx);
        if state.is_full() {
            return Poll::Pending;
        }
        let waker = Waker::from(self.readers.clone());
        let Source::Running(generation) = &mut state.source else {
            return Poll::Ready(Step { event: None, whole: None });
        };
        let Poll::Ready(event) = generation.poll_next_unpin(&mut Context::from_waker(&waker)) else {
            return Poll::Pending;
        };
        let whole = match &event {
            Some(event) => self.take(&mut state, event),
            None => {
                (state.source, state.is_open) = (Source::Ended, false);
                None
            }
        };
        if let Some(member) = state.members.get_mut(&id) {
            member.n_read += usize::from(event.is_some());
        }
        state.trim(&self.bound);
        self.wake_others(id, state);
        Poll::Ready(Step { event, whole })
    }

    /// Trace of the running request.
    pub fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        match &lock(&self.state).source {
            Source::Running(generation) => generation.trace(),
            Source::Starting(_) | Source::Refused(_) | Source::Ended => None,
        }
    }

    /// Notes that a reader's continuation is at the end of its text, and so is that of all others.
    pub fn stop(&self, index: u32) {
        let state = &mut *lock(&self.state);
        let is_stopped = state.stopped.get_mut(index as usize).is_some_and(|s| std::mem::replace(s, true));
        if let (Source::Running(generation), false) = (&mut state.source, is_stopped) {
            generation.abort_continuation(index);
        }
    }

    /// Notes that a reader needs no more of a continuation. Returns whether its end will still be reported:
    /// not while others read it.
    pub fn abandon(&self, id: u64, index: u32) -> bool {
        let mut state = lock(&self.state);
        let left = state.members.get_mut(&id).and_then(|member| member.left.get_mut(index as usize));
        left.into_iter().for_each(|left| *left = true);
        state.end_unread(index)
    }

    /// Removes a reader.
    pub fn leave(&self, id: u64) {
        let mut state = lock(&self.state);
        state.members.remove(&id);
        if !state.members.is_empty() {
            for index in 0..state.stopped.len() as u32 {
                state.end_unread(index);
            }
        }
        state.trim(&self.bound);
        // What the others wait for may have been this reader's to poll.
        self.wake_others(id, state);
    }

    fn wake_others(&self, id: u64, state: MutexGuard<'_, State>) {
        drop(state);
        lock(&self.readers.0).remove(&id);
        self.readers.clone().wake();
    }

    fn wait(&self, id: u64, cx: &Context<'_>) {
        lock(&self.readers.0).insert(id, cx.waker().clone());
    }

    /// Adds an event to the log; returns the complete answer if the event is the last.
    fn take(&self, state: &mut State, event: &ReplicaEvent) -> Option<Box<[ReplicaEvent]>> {
        let n_bytes = event_bytes(event);
        state.log.push_back(event.clone());
        state.n_bytes += n_bytes;
        let total = self.bound.total_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        state.is_open &= state.n_bytes <= self.bound.max_bytes && total <= self.bound.max_total_bytes;
        match event {
            ReplicaEvent::Finished { index, reason, .. } => {
                state.n_live = state.n_live.saturating_sub(1);
                let is_whole = match reason {
                    FinishReason::Stop { .. } | FinishReason::Length => true,
                    FinishReason::Abort => state.stopped.get(*index as usize).is_some_and(|stopped| *stopped),
                    FinishReason::Error => false,
                };
                state.is_open &= is_whole;
            }
            ReplicaEvent::Failed { .. } => (state.n_live, state.is_open) = (0, false),
            ReplicaEvent::Prompt { .. } | ReplicaEvent::Token { .. } => {}
        }
        if state.n_live > 0 {
            return None;
        }
        state.source = Source::Ended;
        // Others may join as long as somebody reads: nothing is between its end here and the copy that is kept.
        state.is_open.then(|| state.log.iter().cloned().collect())
    }
}

impl State {
    /// Whether the fastest reader must wait for the slowest.
    fn is_full(&self) -> bool {
        !self.is_open && self.log.len() >= MAX_LEAD_EVENTS
    }

    /// The next event of a reader, if it is in the log.
    fn logged(&mut self, id: u64) -> Option<ReplicaEvent> {
        let n_dropped = self.n_dropped;
        let member = self.members.get_mut(&id)?;
        let event = self.log.get(member.n_read.checked_sub(n_dropped)?)?.clone();
        member.n_read += 1;
        Some(event)
    }

    /// Ends a continuation that no reader needs any more; `false` if one does.
    fn end_unread(&mut self, index: u32) -> bool {
        let is_unread = self.members.values().all(|member| member.left[index as usize]);
        if is_unread && !std::mem::replace(&mut self.stopped[index as usize], true) {
            self.is_open = false;
            if let Source::Running(generation) = &mut self.source {
                generation.abort_continuation(index);
            }
        }
        is_unread
    }

    /// Drops the events that all readers have read, unless readers may still join.
    fn trim(&mut self, bound: &LogBound) {
        if self.is_open {
            return;
        }
        let n_read = self.members.values().map(|member| member.n_read).min().unwrap_or(usize::MAX);
        while self.n_dropped < n_read
            && let Some(event) = self.log.pop_front()
        {
            self.n_dropped += 1;
            let n_bytes = event_bytes(&event);
            self.n_bytes -= n_bytes;
            bound.total_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for SharedGeneration {
    fn drop(&mut self) {
        let n_bytes = lock(&self.state).n_bytes;
        self.bound.total_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for SharedGeneration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        let (n_readers, n_events) = (state.members.len(), state.n_dropped + state.log.len());
        f.debug_struct("SharedGeneration")
            .field("n_readers", &n_readers)
            .field("n_events", &n_events)
            .finish_non_exhaustive()
    }
}
