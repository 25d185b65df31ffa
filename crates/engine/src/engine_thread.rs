//! The engine thread: owns the clock and the channels, turns messages into inputs of the core and carries
//! out its effects. Makes no decisions and runs no foreign code: executors are made and run on their own
//! threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_core::engine::recording::{LoadObserver, Observed};
use throng_core::engine::{
    Effect, EngineCore, EngineFailure, EngineState, Epoch, Input, StepDone, StepError, StepRecord,
};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::time::{Nanos, Timestamp};
use tracing::{error, info, warn};

use crate::executor_thread::{ExecutorThread, MakeExecutor, panic_message};
use crate::masks::MaskThreads;
use crate::message::{Inbox, Message, Submission};
use crate::outbox::{Outbox, Outlet};
use crate::shared::Shared;
use crate::store::StoreThreads;

/// Interval of the engine thread's heartbeat, also without work.
const HEARTBEAT: Nanos = Nanos::from_ms(500);

/// Marks an engine as unhealthy when its thread ends unexpectedly; has no effect after a regular end.
struct MarkOnExit(Arc<Shared>);

impl Drop for MarkOnExit {
    fn drop(&mut self) {
        self.0.advance_state(EngineState::Unhealthy);
    }
}

/// The state of the engine thread.
pub struct EngineThread {
    core: EngineCore,
    make_executor: Arc<Mutex<Box<MakeExecutor>>>,
    shared: Arc<Shared>,
    inbox: Inbox,
    messages: Receiver<Message>,
    outbox: Outbox,
    /// The stream of the request that is being submitted.
    arriving: Option<Outlet>,
    /// Thread of the executor; `None` if it could not be replaced and the engine is unhealthy.
    executor: Option<ExecutorThread>,
    masks: MaskThreads,
    /// Threads of the store for blocks, if there is one.
    pub store: Option<StoreThreads>,
    /// Time that was passed to the core with the newest input.
    applied_at: Timestamp,
    /// Planning times of the steps in flight, the oldest first.
    planning: VecDeque<Nanos>,
    /// Effects of the newest input; emptied after each one.
    effects: Vec<Effect>,
    /// Inputs that follow from effects, applied before any message.
    following: VecDeque<Input>,
    /// Senders that are dropped when the engine has stopped.
    drains: Vec<Sender<()>>,
    /// Receiver of all inputs, if they are recorded.
    observer: Option<Arc<dyn LoadObserver>>,
}

impl EngineThread {
    /// Creates the state before the first step. `executor` has the core's first epoch.
    pub fn new(
        core: EngineCore,
        make_executor: Box<MakeExecutor>,
        executor: ExecutorThread,
        shared: Arc<Shared>,
        inbox: Inbox,
        messages: Receiver<Message>,
        masks: MaskThreads,
    ) -> Self {
        Self {
            core,
            make_executor: Arc::new(Mutex::new(make_executor)),
            shared,
            inbox,
            messages,
            outbox: Outbox::default(),
            arriving: None,
            executor: Some(executor),
            masks,
            store: None,
            applied_at: Timestamp::default(),
            planning: VecDeque::new(),
            effects: Vec::new(),
            following: VecDeque::new(),
            drains: Vec::new(),
            observer: None,
        }
    }

    /// Runs until drained. A panic in here is a bug; it ends the engine, whose streams then fail, but not
    /// the process.
    pub fn run(mut self) {
        let mark = MarkOnExit(Arc::clone(&self.shared));
        let result = catch_unwind(AssertUnwindSafe(|| self.run_steps()));
        // First of all, and before the streams end: what follows may panic again.
        drop(mark);
        self.outbox.hand_over();
        let drains = std::mem::take(&mut self.drains);
        drop(self);
        match result {
            Ok(()) => info!("the engine has stopped"),
            Err(panic) => error!(panic = panic_message(panic), "the engine thread panicked"),
        }
        drop(drains);
    }

    fn run_steps(&mut self) {
        self.publish_stats();
        while self.core.state() != EngineState::Stopped {
            self.beat();
            let has_news = self.take_messages();
            self.beat();
            if has_news || self.core.next_deadline().is_some_and(|deadline| deadline <= self.shared.now()) {
                self.apply(Input::Tick);
                self.collect_step();
                self.publish_stats();
                // After the next step was submitted: readers that are woken take processors away.
                self.outbox.hand_over();
            }
        }
    }

    /// Shows progress, unless the engine waits for an executor.
    fn beat(&self) {
        if !self.core.is_awaiting_executor() {
            self.shared.beat();
        }
    }

    /// Waits for a message until the next deadline or heartbeat at most, and applies all that have arrived.
    /// Returns whether there was one.
    fn take_messages(&mut self) -> bool {
        let now = self.shared.now();
        let patience =
            self.core.next_deadline().map_or(HEARTBEAT, |deadline| deadline.since(now).min(HEARTBEAT));
        match self.messages.recv_timeout(Duration::from_nanos(patience.0)) {
            Ok(message) => self.take(message),
            // The thread holds a sender itself: it is never disconnected.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(message) = self.messages.try_recv() {
            self.take(message);
        }
        true
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let Submission { request, arrived, outlet } = *submission;
                self.arriving = Some(outlet);
                if request.constraint.is_some() {
                    self.masks.open(request.id, &request.tenant);
                }
                self.apply(Input::Submit { request, arrived });
            }
            Message::Input(input) => {
                if let Input::StepDone(done) = &input {
                    if let Err(StepError::Panicked(message)) = &done.result {
                        error!(message, "a step panicked");
                    }
                    self.executor.iter_mut().for_each(|executor| executor.note_end(done.epoch));
                }
                self.apply(input);
            }
            Message::Observe(observer) => self.observer = Some(observer),
            Message::Drain { limit, stopped } => {
                self.drains.extend(stopped);
                let deadline = limit.map(|limit| self.shared.now() + Nanos::from(limit));
                self.apply(Input::Drain { deadline });
            }
        }
    }

    /// Applies an input and the inputs that follow from its effects.
    fn apply(&mut self, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next {
            let now = self.shared.now();
            self.applied_at = now;
            let observed = {
                // Logged before it is applied: should the core panic, the input is there to be looked at.
                let mut log = self.shared.input_log();
                let input = log.push(now, input);
                self.core.apply(input, now, &mut self.effects);
                self.observer.as_ref().map(|_| Observed::new(input, now, &self.effects))
            };
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.carry_out(effect);
            }
            self.store.iter().for_each(StoreThreads::begin_pulls);
            self.effects = effects;
            // Only now, so that no step waits for an observer.
            if let (Some(observer), Some(observed)) = (&self.observer, observed) {
                observer.observed(observed);
            }
            next = self.following.pop_front();
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Accept(request) => {
                if let Some(outlet) = self.arriving.take() {
                    self.outbox.open(request, outlet);
                }
            }
            Effect::Refuse { request, failure } => {
                warn!(request = request.0, %failure, "a request was refused");
                if failure != EngineFailure::DuplicateId {
                    self.masks.close(request);
                }
                if let Some(outlet) = self.arriving.take() {
                    outlet.fail(failure);
                }
            }
            Effect::LeaveQueue { n_tokens } => self.shared.intake().leave_queue(n_tokens),
            Effect::Deliver { request, event } => {
                if let Some(n_events) = self.outbox.add(request, event) {
                    self.following.push_back(Input::ReaderBehind { request, n_events });
                }
            }
            Effect::Close { request, failure, trace } => {
                if let Some(EngineFailure::SlowReader { .. }) = failure {
                    warn!(request = request.0, "a reader was too slow; its request is aborted");
                }
                self.masks.close(request);
                self.outbox.close(request, failure, trace);
            }
            Effect::Execute { epoch, batch } => {
                self.masks.evaluate_batch(&batch);
                self.execute(epoch, batch);
            }
            // Only a simulator's engine has them.
            Effect::DeliverPlain { .. } => {}
            Effect::EvaluateMasks(masks) => self.masks.evaluate(&masks),
            Effect::OrderStore(order) => self.store.iter().for_each(|store| store.carry_out(order)),
            Effect::EndStep { record, failure } => {
                if let Some(failure) = failure {
                    warn!(%failure, n_sequences = record.n_sequences, "a step failed");
                }
                let planning = self.planning.pop_front().unwrap_or_default();
                self.shared.step_log().push(StepRecord { planning, ..record });
            }
            Effect::ReplaceExecutor { epoch } => {
                info!("making a new executor");
                self.executor = None;
                self.planning.clear();
                let make_executor = Arc::clone(&self.make_executor);
                match ExecutorThread::start_making(make_executor, epoch, self.inbox.clone()) {
                    Ok(executor) => self.executor = Some(executor),
                    Err(error) => {
                        let reason = error.to_string();
                        self.following.push_back(Input::ExecutorNotMade { epoch, reason });
                    }
                }
            }
            Effect::GiveUpExecutor { reason } => {
                error!(reason, "the engine has no executor any more");
                self.executor = None;
            }
            Effect::State(state) => self.shared.advance_state(state),
        }
    }

    fn execute(&mut self, epoch: Epoch, batch: Arc<ScheduledBatch>) {
        let lost = match &mut self.executor {
            Some(executor) => executor.submit(batch).err(),
            None => Some(Box::new(StepDone::of_dead_thread(epoch, StepOutput::default()))),
        };
        self.planning.push_back(self.shared.now().since(self.applied_at));
        if let Some(done) = lost {
            self.following.push_back(Input::StepDone(*done));
        }
    }

    /// Makes the executor thread wait for the oldest step in flight. The next step was submitted before,
    /// and begins meanwhile.
    fn collect_step(&mut self) {
        if let Some(executor) = &mut self.executor
            && executor.has_step_to_collect()
        {
            executor.collect(self.shared.input_log().spare_output());
        }
    }

    fn publish_stats(&mut self) {
        *self.shared.stats() = self.core.stats();
        if self.shared.is_cache_followed() {
            let events = self.core.take_cache_events();
            if !events.is_empty() {
                self.shared.cache_log().extend(events);
            }
        }
    }
}
