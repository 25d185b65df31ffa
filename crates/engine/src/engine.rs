//! The engine thread: inbox → scheduler → executor → outbox. Owns the clock and watches each step. Refuses to
//! know what a batch computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use throng_core::batch::StepOutput;
use throng_core::executor::{Executor, ExecutorError};
use throng_core::request::{Request, RequestId, SequenceId};
use throng_core::scheduler::{Scheduler, Step};
use throng_core::time::{Nanos, Timestamp};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use crate::config::EngineConfig;
use crate::error::{EngineError, EngineFailure};
use crate::executor_thread::{Epoch, ExecutorThread, StepDone, StepError, panic_message};
use crate::handle::{EngineState, HEARTBEAT, Shared};
use crate::outbox::{Outbox, Outlet};
use crate::stats::EngineStats;
use crate::step_log::StepRecord;

/// What the engine thread is told.
#[derive(Debug)]
pub enum Message {
    /// A request that has its place in the queue.
    Submit(Box<Submission>),
    /// The reader is gone.
    Abort(RequestId),
    /// One continuation needs no more tokens.
    AbortSequence(SequenceId),
    /// The reader of a paused request has caught up.
    Resume(RequestId),
    /// A step ended, maybe one that was given up long ago.
    StepDone(StepDone),
    /// Finish what is there, for at most this long, and stop.
    Drain {
        /// None: as long as it takes.
        limit: Option<Duration>,
        /// Whom to tell.
        done: Option<oneshot::Sender<()>>,
    },
}

/// A request on its way in.
#[derive(Debug)]
pub struct Submission {
    pub request: Request,
    pub arrived: Timestamp,
    pub outlet: Outlet,
}

/// Makes executors.
pub type MakeExecutor = dyn FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send;

/// Calls `make_executor` so that its panic is an error.
pub fn make_guarded(make_executor: &mut MakeExecutor) -> Result<Box<dyn Executor>, EngineError> {
    match catch_unwind(AssertUnwindSafe(make_executor)) {
        Ok(made) => Ok(made?),
        Err(panic) => Err(EngineError::ExecutorPanicked(panic_message(panic))),
    }
}

/// Marks an engine as unhealthy when its thread ends in any way but the foreseen one; after that it has no effect.
struct MarkOnExit(Arc<Shared>);

impl Drop for MarkOnExit {
    fn drop(&mut self) {
        self.0.advance_state(EngineState::Unhealthy);
    }
}

/// The state of the engine thread.
pub struct EngineLoop {
    config: EngineConfig,
    make_executor: Box<MakeExecutor>,
    shared: Arc<Shared>,
    inbox: Sender<Message>,
    messages: Receiver<Message>,
    scheduler: Scheduler,
    outbox: Outbox,
    /// None: it could not be replaced, the engine is unhealthy.
    executor: Option<ExecutorThread>,
    step: Option<InFlight>,
    spare_output: StepOutput,
    stats: EngineStats,
    n_arrivals: u32,
    drain: Option<Drain>,
}

struct InFlight {
    step: Step,
    deadline: Instant,
    record: StepRecord,
}

#[derive(Default)]
struct Drain {
    deadline: Option<Instant>,
    waiters: Vec<oneshot::Sender<()>>,
}

impl EngineLoop {
    /// The state before the first step.
    pub fn new(
        config: EngineConfig,
        make_executor: Box<MakeExecutor>,
        executor: Box<dyn Executor>,
        shared: Arc<Shared>,
        inbox: Sender<Message>,
        messages: Receiver<Message>,
    ) -> Result<Self, EngineError> {
        let scheduler = Scheduler::new(config.scheduler.clone(), executor.capacity());
        let executor = ExecutorThread::start(executor, Epoch(0), inbox.clone())?;
        let outbox = Outbox::new(Arc::clone(&shared));
        let stats = EngineStats { scheduler: scheduler.stats(), ..EngineStats::default() };
        shared.set_stats(stats);
        Ok(Self {
            config,
            make_executor,
            shared,
            inbox,
            messages,
            scheduler,
            outbox,
            executor: Some(executor),
            step: None,
            spare_output: StepOutput::default(),
            stats,
            n_arrivals: 0,
            drain: None,
        })
    }

    /// Runs until drained. A panic in here is a bug; it ends the engine, whose streams then fail, not the process.
    pub fn run(mut self) {
        let mark = MarkOnExit(Arc::clone(&self.shared));
        let result = catch_unwind(AssertUnwindSafe(|| self.run_steps()));
        // First of all, and before the streams end: what follows may panic again.
        if result.is_ok() {
            self.shared.advance_state(EngineState::Stopped);
        }
        drop(mark);
        let drain = self.drain.take();
        drop(self);
        match result {
            Ok(()) => info!("the engine has stopped"),
            Err(panic) => error!(panic = panic_message(panic), "the engine thread panicked"),
        }
        for waiter in drain.into_iter().flat_map(|drain| drain.waiters) {
            let _ = waiter.send(());
        }
    }

    fn run_steps(&mut self) {
        while !self.is_done() {
            self.shared.beat();
            self.wait();
            self.shared.beat();
            while let Ok(message) = self.messages.try_recv() {
                self.handle(message);
            }
            self.check_deadline();
            self.fail_slow_readers();
            self.begin_step();
            self.publish_stats();
        }
        self.fail_all(EngineFailure::Stopped);
        self.publish_stats();
    }

    /// Waits for a message, no longer than until the next deadline or heartbeat.
    fn wait(&mut self) {
        let of_step = self.step.as_ref().map(|in_flight| in_flight.deadline);
        let of_drain = self.drain.as_ref().and_then(|drain| drain.deadline);
        let now = Instant::now();
        let deadline = of_step.into_iter().chain(of_drain).fold(now + HEARTBEAT, Instant::min);
        if let Ok(message) = self.messages.recv_timeout(deadline.saturating_duration_since(now)) {
            self.handle(message);
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => self.submit(*submission),
            Message::Abort(request) => {
                let (now, outbox) = (self.shared.now(), &mut self.outbox);
                self.scheduler.abort(request, now, &mut |event| outbox.deliver(event));
            }
            Message::AbortSequence(sequence) => {
                let (now, outbox) = (self.shared.now(), &mut self.outbox);
                self.scheduler.abort_sequence(sequence, now, &mut |event| outbox.deliver(event));
            }
            Message::Resume(request) => {
                self.outbox.resume(request);
                self.scheduler.resume(request);
            }
            Message::StepDone(done) => self.end_step(done),
            Message::Drain { limit, done } => {
                self.shared.advance_state(EngineState::Draining);
                let drain = self.drain.get_or_insert_default();
                let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
                drain.deadline = drain.deadline.into_iter().chain(deadline).min();
                drain.waiters.extend(done);
            }
        }
    }

    fn submit(&mut self, Submission { request, arrived, outlet }: Submission) {
        let (id, n_queued_tokens) = (request.id, request.n_queued_tokens());
        let failure = if self.executor.is_none() {
            EngineFailure::Unhealthy
        } else if self.scheduler.is_alive(id) {
            EngineFailure::DuplicateId
        } else if let Err(refusal) = self.scheduler.submit(request, arrived) {
            refusal.into()
        } else {
            self.n_arrivals += 1;
            return self.outbox.open(id, outlet);
        };
        self.shared.leave_queue(n_queued_tokens);
        let _ = outlet.link.failure.set(failure);
    }

    fn begin_step(&mut self) {
        let (None, Some(executor)) = (&self.step, &self.executor) else { return };
        let (now, outbox) = (self.shared.now(), &mut self.outbox);
        let Some(step) = self.scheduler.plan(now, &mut |event| outbox.deliver(event)) else { return };
        let lost = executor.execute(Arc::clone(step.batch()), std::mem::take(&mut self.spare_output)).err();
        let (rows, stats) = (step.batch().rows(), self.scheduler.stats());
        let record = StepRecord {
            number: stats.counters.steps,
            started: now,
            duration: Nanos::default(),
            planning: self.shared.now().since(now),
            executing: Nanos::default(),
            choosing: Nanos::default(),
            n_arrivals: std::mem::take(&mut self.n_arrivals),
            n_rows: rows.len() as u32,
            n_sampled: rows.iter().filter(|row| row.sample).count() as u32,
            n_tokens: step.shape().n_tokens as u32,
            n_attended: step.shape().n_attended as u64,
            n_waiting: stats.waiting as u32,
            succeeded: false,
        };
        let deadline = Instant::now() + Duration::from_millis(self.config.step_timeout_ms);
        self.step = Some(InFlight { step, deadline, record });
        if let Some(done) = lost {
            self.end_step(*done);
        }
    }

    fn end_step(&mut self, done: StepDone) {
        if self.executor.as_ref().map(|executor| executor.epoch) != Some(done.epoch) {
            // A thread that was left behind came back; with its channel closed it has now ended.
            self.stats.abandoned_threads = self.stats.abandoned_threads.saturating_sub(1);
            return;
        }
        let Some(in_flight) = self.step.take() else { return };
        self.spare_output = done.output;
        let failure = match done.result {
            Ok(()) => {
                let (executing, choosing) = (done.executing, self.spare_output.choosing);
                let record = StepRecord { executing, choosing, succeeded: true, ..in_flight.record };
                let now = self.log_step(record);
                let (output, outbox) = (&self.spare_output, &mut self.outbox);
                self.scheduler.complete(in_flight.step, output, now, &mut |event| outbox.deliver(event));
                return self.settle_readers();
            }
            Err(StepError::Executor(reason)) => {
                self.stats.failures.failed_steps += 1;
                EngineFailure::StepFailed(reason)
            }
            Err(StepError::Panicked(message)) => {
                error!(message, "a step panicked");
                self.stats.failures.panicked_steps += 1;
                EngineFailure::StepPanicked
            }
        };
        self.fail_step(in_flight, failure);
    }

    /// Gives up a step that takes too long.
    fn check_deadline(&mut self) {
        let now = Instant::now();
        if let Some(in_flight) = self.step.take_if(|in_flight| in_flight.deadline <= now) {
            self.stats.abandoned_threads += 1;
            self.stats.failures.timed_out_steps += 1;
            let timeout_ms = self.config.step_timeout_ms;
            self.fail_step(in_flight, EngineFailure::StepTimedOut { timeout_ms });
        }
    }

    /// Fails the requests of a step without a result and goes on with a new executor; what was not in the step
    /// is computed again.
    fn fail_step(&mut self, in_flight: InFlight, failure: EngineFailure) {
        warn!(%failure, n_rows = in_flight.record.n_rows, "a step failed; making a new executor");
        self.executor = None;
        let now = self.log_step(in_flight.record);
        self.outbox.step_failure = failure;
        let outbox = &mut self.outbox;
        self.scheduler.fail(in_flight.step, now, &mut |event| outbox.deliver(event));
        self.settle_readers();
        self.scheduler.reset_cache();
        match self.replace_executor() {
            Ok(executor) => self.executor = Some(executor),
            Err(reason) => {
                error!(reason, "the engine has no executor any more");
                self.shared.advance_state(EngineState::Unhealthy);
                self.fail_all(EngineFailure::Unhealthy);
            }
        }
    }

    fn replace_executor(&mut self) -> Result<ExecutorThread, String> {
        if self.stats.abandoned_threads > self.config.max_abandoned_threads {
            return Err(format!("{} threads hang", self.stats.abandoned_threads));
        }
        let executor = make_guarded(&mut *self.make_executor).map_err(|error| error.to_string())?;
        if executor.capacity() != self.shared.capacity() {
            return Err("the new executor has another capacity".into());
        }
        self.stats.executor_restarts += 1;
        let epoch = Epoch(self.stats.executor_restarts);
        ExecutorThread::start(executor, epoch, self.inbox.clone()).map_err(|error| error.to_string())
    }

    fn fail_all(&mut self, failure: EngineFailure) {
        for request in self.outbox.requests() {
            let (now, outbox) = (self.shared.now(), &mut self.outbox);
            outbox.fail(request, failure.clone());
            self.scheduler.abort(request, now, &mut |event| outbox.deliver(event));
        }
    }

    /// Pauses the requests whose readers are behind; for when no step is in flight.
    fn settle_readers(&mut self) {
        while let Some(request) = self.outbox.overrun.pop() {
            self.abort_slow(request);
        }
        while let Some(request) = self.outbox.full.pop() {
            if self.outbox.pause(request, Instant::now()) {
                self.scheduler.pause(request);
            }
        }
        while let Some(request) = self.outbox.surplus_paused(self.config.max_paused_requests as usize) {
            self.abort_slow(request);
        }
    }

    /// Ends the requests that were paused for too long.
    fn fail_slow_readers(&mut self) {
        let limit = Duration::from_millis(self.config.pause_timeout_ms);
        while let Some((since, request)) = self.outbox.longest_paused()
            && since.elapsed() >= limit
        {
            self.abort_slow(request);
        }
    }

    fn abort_slow(&mut self, request: RequestId) {
        self.outbox.fail_slow(request);
        let (now, outbox) = (self.shared.now(), &mut self.outbox);
        self.scheduler.abort(request, now, &mut |event| outbox.deliver(event));
        warn!(request = request.0, "a reader was too slow; its request is aborted");
    }

    fn log_step(&mut self, record: StepRecord) -> Timestamp {
        let now = self.shared.now();
        let duration = now.since(record.started);
        self.shared.log_step(StepRecord { duration, ..record });
        self.stats.iteration_tokens.observe(u64::from(record.n_tokens));
        self.stats.step_seconds += duration.as_secs_f64();
        now
    }

    fn publish_stats(&mut self) {
        self.stats.scheduler = self.scheduler.stats();
        self.stats.failures.requests = self.outbox.n_failed;
        self.shared.set_stats(self.stats);
    }

    fn is_done(&self) -> bool {
        let overdue = |drain: &Drain| drain.deadline.is_some_and(|deadline| deadline <= Instant::now());
        self.drain.as_ref().is_some_and(|drain| self.scheduler.is_idle() || overdue(drain))
    }
}
