//! The engine's handle, shared by many threads. Decides at once which requests are accepted, and never
//! waits for a step. Does not know how steps run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use throng_core::engine::recording::LoadObserver;
use throng_core::engine::{
    EngineConfig, EngineCore, EngineState, EngineStats, Epoch, Input, InputLog, StepRecord, SubmitError,
};
use throng_core::request::{Request, RequestId};
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::scheduling::block_pool::{CacheCursor, CacheNews};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::time::Nanos;
use tokio::sync::{mpsc, oneshot};

use crate::engine_thread::EngineThread;
use crate::error::EngineError;
use crate::executor_thread::{ExecutorThread, MakeExecutor, make_guarded};
use crate::masks::MaskThreads;
use crate::message::{Inbox, Message, Submission};
use crate::outbox::{Outlet, StreamLink};
use crate::shared::Shared;
use crate::store::{ExportedBlocks, OpenStore, StoreThreads, Tiers};
use crate::stream::TokenStream;

/// Silence of the engine thread after which it counts as stalled.
const MAX_SILENCE: Nanos = Nanos::from_ms(1_500);

/// Silence of the engine thread after which it counts as lost.
const MAX_ABSENCE: Nanos = Nanos::from_ms(60_000);

/// Time after the limit of a drain within which the engine thread must report that it has stopped.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Minimum number of events of each continuation that may wait for a reader before its request is paused.
const LEAST_BUFFERED_STEPS: u64 = 8;

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

/// Handle of an engine. Clones share it; it stops when the last one is dropped and its requests have ended.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    max_buffered_events: u64,
    inbox: Inbox,
    store: Option<StoreThreads>,
    thread: Arc<JoinHandle<()>>,
    _stop: Arc<StopOnDrop>,
}

/// Stops the engine when the last handle is dropped.
#[derive(Debug)]
struct StopOnDrop(Inbox);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Drain { limit: None, stopped: None });
    }
}

impl Engine {
    /// Starts an engine. `make_executor` is called once now, and again, on a thread of its own, whenever an
    /// executor is lost.
    ///
    /// # Errors
    /// When the first executor cannot be created, or no thread can be started.
    pub fn start(
        config: EngineConfig,
        make_executor: impl FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send + 'static,
    ) -> Result<EngineHandle, EngineError> {
        Self::start_with_tiers(config, &Tiers::default(), make_executor)
    }

    /// Starts an engine as [`Self::start`] does, with places for blocks outside of the executor's memory, as
    /// far as its blocks can leave it.
    ///
    /// # Errors
    /// Errors of [`Self::start`].
    pub fn start_with_tiers(
        config: EngineConfig,
        tiers: &Tiers,
        mut make_executor: impl FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send + 'static,
    ) -> Result<EngineHandle, EngineError> {
        let (inbox, messages) = channel();
        let (mut executor, mut capacity) = make_guarded(&mut make_executor)?;
        let is_asked = tiers.disk.is_some() || tiers.peers.is_some();
        let mut store = None;
        if is_asked && let Some((open, input)) = OpenStore::open(tiers, &*executor, inbox.clone()) {
            executor = open.around(executor)?;
            capacity = executor.capacity();
            // The first of all messages.
            let _ = inbox.send(Message::Input(input));
            store = Some(open);
        }
        let threads = store.as_ref().map(|store| store.threads().clone());
        let make_executor: Box<MakeExecutor> = match store {
            None => Box::new(make_executor),
            Some(store) => Box::new(move || store.around(make_executor()?)),
        };
        let shared = Arc::new(Shared::new(&config, capacity));
        let max_buffered_events = u64::from(config.max_buffered_events.max(2));
        let executor = ExecutorThread::start(executor, Epoch::default(), inbox.clone())?;
        let masks = MaskThreads::new(&config, capacity.vocabulary_size, inbox.clone());
        let core = EngineCore::new(config, capacity);
        *shared.stats() = core.stats();
        let (own, of_engine) = (inbox.clone(), Arc::clone(&shared));
        let mut engine = EngineThread::new(core, make_executor, executor, of_engine, own, messages, masks);
        engine.store.clone_from(&threads);
        shared.beat();
        let thread = std::thread::Builder::new().name("throng-engine".into()).spawn(move || engine.run())?;
        let stop = Arc::new(StopOnDrop(inbox.clone()));
        let thread = Arc::new(thread);
        Ok(EngineHandle { shared, max_buffered_events, inbox, store: threads, thread, _stop: stop })
    }
}

impl EngineHandle {
    /// A new request id.
    pub fn next_request_id(&self) -> RequestId {
        RequestId(self.shared.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// Submits a request with an id from [`Self::next_request_id`], or refuses it at once.
    ///
    /// # Errors
    /// When the request can never run, the queue is full, or the engine takes no new requests.
    pub fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        if self.is_lost() {
            return Err(SubmitError::Unhealthy);
        }
        self.shared.intake().enter(&request)?;
        let (id, n) = (request.id, request.continuations().count() as u32);
        let high_mark = self.max_buffered_events.max(LEAST_BUFFERED_STEPS * u64::from(n));
        let (events, receiver) = mpsc::unbounded_channel();
        let link = Arc::new(StreamLink::new(high_mark as usize));
        let outlet = Outlet { events, link: Arc::clone(&link) };
        let submission = Submission { request, arrived: self.shared.now(), outlet };
        let shared = Arc::clone(&self.shared);
        let stream = TokenStream::new(id, n, receiver, link, shared, self.inbox.clone());
        match self.inbox.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Unhealthy),
        }
    }

    /// Checks whether any request could enter now, before work is spent on preparing one.
    ///
    /// # Errors
    /// Errors of [`Self::submit`] for a prompt of one token.
    pub fn check_room(&self) -> Result<(), SubmitError> {
        match self.state() {
            EngineState::Unhealthy => Err(SubmitError::Unhealthy),
            EngineState::Running | EngineState::Draining | EngineState::Stopped => {
                self.shared.intake().check_room()
            }
        }
    }

    /// Capacity of the executor, with `max_sequence_tokens` reduced to the tokens that all KV blocks hold.
    pub fn capacity(&self) -> ExecutorCapacity {
        let max_sequence_tokens = self.shared.intake().max_sequence_tokens() as u32;
        ExecutorCapacity { max_sequence_tokens, ..self.shared.capacity }
    }

    /// State of the engine.
    pub fn state(&self) -> EngineState {
        // Looked at first: a thread that stops as foreseen says so before it ends.
        let is_finished = self.thread.is_finished();
        match self.shared.state() {
            EngineState::Running | EngineState::Draining if is_finished => EngineState::Unhealthy,
            state => state,
        }
    }

    /// Whether the engine can run requests; a draining engine still can. Reports within two seconds that the
    /// engine thread has ended or stalled.
    pub fn is_healthy(&self) -> bool {
        let runs = matches!(self.state(), EngineState::Running | EngineState::Draining);
        runs && self.shared.silence() <= MAX_SILENCE
    }

    /// Whether the engine will not run requests again: it is unhealthy, or has stalled for a minute.
    pub fn is_lost(&self) -> bool {
        match self.state() {
            EngineState::Unhealthy => true,
            EngineState::Stopped => false,
            EngineState::Running | EngineState::Draining => self.shared.silence() > MAX_ABSENCE,
        }
    }

    /// Numbers of the engine at the end of the last step.
    pub fn stats(&self) -> EngineStats {
        let mut stats = *self.shared.stats();
        let (queued_requests, queued_tokens) = self.shared.intake().queued();
        stats.scheduler.queued_requests = queued_requests;
        stats.scheduler.queued_tokens = queued_tokens;
        stats
    }

    /// Changes of the prefix cache since this reader's last call; for a new reader, the whole content.
    /// Changes are recorded from the first call on, at the end of each step.
    pub fn cache_news(&self, cursor: &mut CacheCursor) -> CacheNews {
        self.shared.follow_cache();
        self.shared.cache_log().read(cursor)
    }

    /// Layout of the blocks that [`Self::export_blocks`] gives; `None` if the engine exchanges no blocks.
    pub fn block_layout(&self) -> Option<&BlockLayout> {
        self.store.as_ref().map(StoreThreads::layout)
    }

    /// Copies blocks of these names for another engine, a few with each step, from memory and from disk. As
    /// many are queued as the engine has room for; the others are missing at once.
    pub fn export_blocks(&self, names: &[BlockHash]) -> Option<ExportedBlocks> {
        let (ids, exported) = self.store.as_ref()?.exports().begin(names.len());
        let wanted = ids.into_iter().zip(names.iter().copied()).collect();
        self.inbox.send(Message::Input(Input::ExportBlocks(wanted))).ok()?;
        Some(exported)
    }

    /// The latest steps, oldest first.
    pub fn step_log(&self) -> Vec<StepRecord> {
        self.shared.step_log().records()
    }

    /// Takes the log of the latest inputs; recording continues with an empty one.
    pub fn take_input_log(&self) -> InputLog {
        self.shared.input_log().take()
    }

    /// Sets the observer of all inputs from now on, replacing the one before.
    pub fn observe(&self, observer: Arc<dyn LoadObserver>) {
        // An error would mean that the engine has ended.
        let _ = self.inbox.send(Message::Observe(observer));
    }

    /// Refuses new requests, lets the present ones run for at most `limit`, then fails the rest and stops.
    /// Returns when the engine has stopped, or two seconds after `limit` if the engine thread has stalled.
    pub async fn drain(&self, limit: Duration) {
        self.shared.advance_state(EngineState::Draining);
        let (stopped, told) = channel();
        if self.inbox.send(Message::Drain { limit: Some(limit), stopped: Some(stopped) }).is_err() {
            return;
        }
        let (done, waited) = oneshot::channel();
        // A thread waits, not a timer: the caller's runtime may have none.
        let wait = move || {
            let _ = told.recv_timeout(limit.saturating_add(DRAIN_GRACE));
            let _ = done.send(());
        };
        if std::thread::Builder::new().name("throng-drain".into()).spawn(wait).is_ok() {
            // An error would mean that the thread has ended as well.
            let _ = waited.await;
        }
    }

    /// Stops now, failing all requests. Returns without waiting for the end.
    pub fn shutdown(&self) {
        self.shared.advance_state(EngineState::Draining);
        let _ = self.inbox.send(Message::Drain { limit: Some(Duration::ZERO), stopped: None });
    }
}
