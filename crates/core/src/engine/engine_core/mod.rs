//! The engine's decisions, without threads, clock, channels or log: inputs and times are passed in, effects
//! are returned. Equal inputs at equal times give equal effects, so that a log of inputs can be replayed
//! and a simulation runs the code that serves. Does not know the sources of inputs and the execution of
//! effects.

mod cache;
mod effect;
mod input;
mod masks;
mod overdue;
mod streams;
mod traces;

pub use effect::{Effect, PlainToken};
pub use input::{Epoch, Input, StepDone, StepError};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::{Request, RequestId};
use crate::scheduling::executor::{ExecutorCapacity, ExecutorError, MAX_STEPS_IN_FLIGHT};
use crate::scheduling::scheduler::{Emit, Scheduler, Step};
use crate::time::{Nanos, Timestamp};

use crate::engine::config::EngineConfig;
use crate::engine::error::EngineFailure;
use crate::engine::intake::{EngineState, without_queue_bound};
use crate::engine::stats::EngineStats;
use crate::engine::step_log::StepRecord;
use streams::Streams;

/// Longest time for which an engine that was drained saves blocks to its store.
pub const SAVING_TIMEOUT: Nanos = Nanos::from_ms(10_000);

/// The engine's state. It changes only in [`EngineCore::apply`].
#[derive(Debug)]
pub struct EngineCore {
    config: EngineConfig,
    /// Capacity of the first executor; later ones must have at least as much.
    capacity: ExecutorCapacity,
    state: EngineState,
    scheduler: Scheduler,
    streams: Streams,
    executor: CurrentExecutor,
    /// Epoch of the executor that was requested last.
    epoch: Epoch,
    /// The steps in flight, the oldest first.
    steps: VecDeque<InFlight>,
    stats: EngineStats,
    /// Number of requests that arrived since the last step was planned.
    n_arrivals: u32,
    drain: Option<Drain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentExecutor {
    /// The executor is ready or runs steps.
    Ready,
    /// An executor was requested.
    Awaited { deadline: Timestamp },
    /// There is no executor, since it could not be replaced.
    None,
}

#[derive(Debug)]
struct InFlight {
    step: Step,
    /// Time at which the step was planned, or the step before it ended if that was later: since then the
    /// executor runs only this step.
    alone_since: Timestamp,
    record: StepRecord,
}

#[derive(Debug)]
struct Drain {
    /// Latest time; `None` for no limit.
    deadline: Option<Timestamp>,
    /// Time until which an idle engine saves blocks.
    saved_by: Timestamp,
}

impl EngineCore {
    /// Creates an engine that has an executor of this capacity with [`Epoch`] 0, and nothing to do.
    pub fn new(config: EngineConfig, capacity: ExecutorCapacity) -> Self {
        let scheduler = Scheduler::new(without_queue_bound(&config.scheduler), capacity);
        let stats = EngineStats { scheduler: scheduler.stats(), ..EngineStats::default() };
        Self {
            config,
            capacity,
            state: EngineState::Running,
            scheduler,
            streams: Streams::new(),
            executor: CurrentExecutor::Ready,
            epoch: Epoch::default(),
            steps: VecDeque::with_capacity(MAX_STEPS_IN_FLIGHT),
            stats,
            n_arrivals: 0,
            drain: None,
        }
    }

    /// The same engine for an executor that computes no tokens, such as a simulator: decoding sequences get
    /// shares without content, which are not in the traces of requests, and all output tokens come as
    /// [`Effect::DeliverPlain`], without log-probabilities.
    #[must_use]
    pub fn with_plain_shares(mut self) -> Self {
        self.streams.delivers_plain = true;
        Self { scheduler: self.scheduler.with_plain_shares(), ..self }
    }

    /// Exchanges the tokens of [`Effect::DeliverPlain`] since the last call for an empty buffer.
    pub fn swap_plain_tokens(&mut self, tokens: &mut Vec<PlainToken>) {
        tokens.clear();
        std::mem::swap(&mut self.streams.plain_tokens, tokens);
    }

    /// Applies one input at the time `now`, which is never earlier than that of the input before, and appends
    /// to `effects`. The input is borrowed, so that a log may keep it.
    pub fn apply(&mut self, input: &Input, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.state == EngineState::Stopped && !matches!(input, Input::Submit { .. }) {
            return;
        }
        self.streams.now = now;
        match input {
            Input::Submit { request, arrived } => self.submit(request, *arrived, effects),
            Input::Abort(request) => {
                let streams = &mut self.streams;
                self.scheduler.abort(*request, now, &mut |event| streams.pass_on(event, effects));
            }
            Input::AbortSequence(sequence) => {
                let streams = &mut self.streams;
                self.scheduler.abort_sequence(*sequence, now, &mut |event| streams.pass_on(event, effects));
            }
            Input::ReaderBehind { request, n_events } => {
                if self.streams.fall_behind(*request, *n_events, now) {
                    self.pause(*request, now, effects);
                }
            }
            Input::ReaderCaughtUp(request) => {
                if self.streams.catch_up(*request) {
                    self.scheduler.resume(*request);
                }
            }
            Input::MasksEvaluated(report) => self.scheduler.note_masks(report, now),
            Input::StepDone(done) => {
                self.end_step(done, now, effects);
                self.begin_masks(effects);
            }
            Input::ExecutorMade { epoch, capacity } => self.take_executor(*epoch, *capacity, now, effects),
            Input::ExecutorNotMade { epoch, reason } => {
                if self.is_awaiting(*epoch) {
                    self.give_up_executor(reason.clone(), now, effects);
                }
            }
            Input::StoreOpened { capacity, kept } => {
                self.scheduler.attach_store(*capacity, kept.iter().copied());
            }
            Input::BlockWritten { slot, succeeded } => self.scheduler.note_written(*slot, *succeeded),
            Input::BlockRead { slot, succeeded } => self.scheduler.note_read(*slot, *succeeded),
            Input::ExportBlocks(wanted) => self.scheduler.request_exports(wanted, now),
            Input::Drain { deadline } => {
                self.advance_state(EngineState::Draining, effects);
                let saved_by = now + SAVING_TIMEOUT;
                let drain = self.drain.get_or_insert(Drain { deadline: None, saved_by });
                drain.deadline = drain.deadline.into_iter().chain(*deadline).min();
            }
            Input::Tick => self.tick(now, effects),
        }
        effects.extend(self.scheduler.take_store_orders().map(Effect::OrderStore));
    }

    /// Time at which the next [`Input::Tick`] is due if no other input arrives.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.state == EngineState::Stopped {
            return None;
        }
        let of_step = self.step_deadline();
        let of_executor = match self.executor {
            CurrentExecutor::Awaited { deadline } => Some(deadline),
            CurrentExecutor::Ready | CurrentExecutor::None => None,
        };
        let of_drain = self.drain.as_ref().and_then(|drain| drain.deadline);
        let of_saving = self.drain.as_ref().map(|drain| drain.saved_by);
        let of_saving = of_saving.filter(|_| self.scheduler.is_idle());
        let of_restoring = self.scheduler.restore_deadline();
        let of_waiting = [self.wait_deadline(), self.masks_deadline(), of_restoring];
        let deadlines = [of_step, of_executor, of_drain, of_saving].into_iter().chain(of_waiting);
        deadlines.flatten().min()
    }

    /// Whether the engine takes and runs requests.
    pub fn state(&self) -> EngineState {
        self.state
    }

    /// Whether it waits for a requested executor.
    pub fn is_awaiting_executor(&self) -> bool {
        matches!(self.executor, CurrentExecutor::Awaited { .. })
    }

    /// Statistics of the engine. Waiting requests count from their arrival in the core;
    /// [`Intake`](crate::engine::Intake) also counts requests before their arrival.
    pub fn stats(&self) -> EngineStats {
        let mut stats = self.stats;
        stats.scheduler = self.scheduler.stats();
        stats.machine = self.scheduler.machine();
        stats.failures.requests = self.streams.n_failed;
        stats
    }

    /// The scheduler, for reading.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    fn submit(&mut self, request: &Request, arrived: Timestamp, effects: &mut Vec<Effect>) {
        let id = request.id;
        let refused = if self.state == EngineState::Stopped {
            Err(EngineFailure::Stopped)
        } else if self.executor == CurrentExecutor::None {
            Err(EngineFailure::Unhealthy)
        } else if self.streams.is_open(id) || self.scheduler.is_alive(id) {
            Err(EngineFailure::DuplicateId)
        } else {
            self.scheduler.submit(request.clone(), arrived).map_err(EngineFailure::Refused)
        };
        match refused {
            Ok(()) => {
                self.n_arrivals += 1;
                self.streams.open(request, arrived);
                effects.push(Effect::Accept(id));
            }
            Err(failure) => {
                effects.push(Effect::LeaveQueue { n_tokens: request.n_queued_tokens() });
                effects.push(Effect::Refuse { request: id, failure });
            }
        }
    }

    /// Checks every deadline, then begins the next step.
    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.step_deadline().is_some_and(|deadline| deadline <= now) {
            self.stats.abandoned_threads += 1;
            self.stats.failures.timed_out_steps += 1;
            let failure = EngineFailure::StepTimedOut { timeout_ms: self.config.step_timeout_ms };
            self.fail_step(failure, now, effects);
        }
        if matches!(self.executor, CurrentExecutor::Awaited { deadline } if deadline <= now) {
            self.give_up_executor("making it takes too long".to_owned(), now, effects);
        }
        self.end_overdue(now, effects);
        self.end_overdue_masks(now, effects);
        let overdue = |drain: &Drain| drain.deadline.is_some_and(|deadline| deadline <= now);
        let is_saved = |drain: &Drain| drain.saved_by <= now || self.scheduler.is_saved();
        let is_done = |drain: &Drain| self.scheduler.is_idle() && is_saved(drain);
        if self.drain.as_ref().is_some_and(|drain| is_done(drain) || overdue(drain)) {
            self.fail_all(&EngineFailure::Stopped, now, effects);
            return self.advance_state(EngineState::Stopped, effects);
        }
        while self.executor == CurrentExecutor::Ready
            && self.steps.len() < self.scheduler.max_steps_in_flight()
            && self.begin_step(now, effects)
        {}
    }

    /// Plans a step and emits its execution; `false` if there is nothing to compute.
    fn begin_step(&mut self, now: Timestamp, effects: &mut Vec<Effect>) -> bool {
        let streams = &mut self.streams;
        let step = self.scheduler.plan(now, &mut |event| streams.pass_on(event, effects));
        streams.turn_queue_clock(self.scheduler.queue_cause());
        self.begin_masks(effects);
        let Some(step) = step else { return false };
        let (sequences, n_plain) = (step.batch().sequences(), step.batch().plain_shares().len());
        let record = StepRecord {
            number: self.scheduler.n_steps() + self.steps.len() as u64,
            started: now,
            duration: Nanos::default(),
            planning: Nanos::default(),
            executing: Nanos::default(),
            choosing: Nanos::default(),
            n_arrivals: std::mem::take(&mut self.n_arrivals),
            n_sequences: step.batch().n_shares() as u32,
            n_sampled: (sequences.iter().filter(|scheduled| scheduled.sample).count() + n_plain) as u32,
            n_tokens: step.shape().n_tokens as u32,
            n_attended: step.shape().n_attended as u64,
            n_waiting: self.scheduler.n_waiting() as u32,
            succeeded: false,
        };
        effects.push(Effect::Execute { epoch: self.epoch, batch: Arc::clone(step.batch()) });
        self.steps.push_back(InFlight { step, alone_since: now, record });
        true
    }

    fn end_step(&mut self, done: &StepDone, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.executor != CurrentExecutor::Ready || self.epoch != done.epoch {
            // A thread that was left behind came back; it ends now.
            self.stats.abandoned_threads = self.stats.abandoned_threads.saturating_sub(1);
            return;
        }
        let failure = match &done.result {
            Ok(()) => {
                let Some(in_flight) = self.take_oldest_step(now) else { return };
                let (executing, choosing) = (done.executing, done.output.choosing);
                let record = StepRecord { executing, choosing, succeeded: true, ..in_flight.record };
                self.log_step(&in_flight.step, record, None, effects);
                let streams = &mut self.streams;
                return self.scheduler.complete(in_flight.step, &done.output, now, &mut |event| {
                    streams.pass_on(event, effects);
                });
            }
            Err(StepError::Executor(reason)) => {
                self.stats.failures.failed_steps += 1;
                EngineFailure::StepFailed(reason.clone())
            }
            Err(StepError::Panicked(_)) => {
                self.stats.failures.panicked_steps += 1;
                EngineFailure::StepPanicked
            }
        };
        self.fail_step(failure, now, effects);
    }

    /// Removes the oldest step in flight, which ends now.
    fn take_oldest_step(&mut self, now: Timestamp) -> Option<InFlight> {
        let InFlight { step, alone_since, record } = self.steps.pop_front()?;
        if let Some(next) = self.steps.front_mut() {
            next.alone_since = now;
        }
        Some(InFlight {
            step,
            alone_since,
            record: StepRecord { duration: now.since(alone_since), ..record },
        })
    }

    /// Time at which the oldest step in flight is given up.
    fn step_deadline(&self) -> Option<Timestamp> {
        let oldest = self.steps.front()?;
        Some(oldest.alone_since + Nanos::from_ms(self.config.step_timeout_ms))
    }

    /// Fails the requests of the oldest step, which has no result, and requests a new executor; other
    /// running requests are computed again. If a process was lost, those of the step are too, see
    /// [`Scheduler::lose`].
    fn fail_step(&mut self, failure: EngineFailure, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(in_flight) = self.take_oldest_step(now) else { return };
        self.log_step(&in_flight.step, in_flight.record, Some(failure.clone()), effects);
        let is_lost = matches!(failure, EngineFailure::StepFailed(ExecutorError::PeerLost(_)));
        self.streams.step_failure = failure;
        let streams = &mut self.streams;
        let emit: &mut Emit<'_> = &mut |event| streams.pass_on(event, effects);
        match is_lost {
            true => self.scheduler.lose(in_flight.step, now, emit),
            false => self.scheduler.fail(in_flight.step, now, emit),
        }
        for in_flight in self.steps.drain(..) {
            match is_lost {
                true => self.scheduler.lose(in_flight.step, now, emit),
                false => self.scheduler.discard(in_flight.step, now),
            }
        }
        self.scheduler.reset_cache();
        let n_hanging = self.stats.abandoned_threads;
        if n_hanging > self.config.max_abandoned_threads {
            return self.give_up_executor(format!("{n_hanging} threads hang"), now, effects);
        }
        self.epoch = Epoch(self.epoch.0 + 1);
        let deadline = now + Nanos::from_ms(self.config.executor_timeout_ms);
        self.executor = CurrentExecutor::Awaited { deadline };
        effects.push(Effect::ReplaceExecutor { epoch: self.epoch });
    }

    fn is_awaiting(&self, epoch: Epoch) -> bool {
        self.is_awaiting_executor() && self.epoch == epoch
    }

    fn take_executor(
        &mut self,
        epoch: Epoch,
        capacity: ExecutorCapacity,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if !self.is_awaiting(epoch) {
            return;
        }
        if capacity != self.capacity {
            return self.give_up_executor("the new executor has another capacity".to_owned(), now, effects);
        }
        self.stats.executor_restarts += 1;
        self.executor = CurrentExecutor::Ready;
    }

    fn give_up_executor(&mut self, reason: String, now: Timestamp, effects: &mut Vec<Effect>) {
        self.executor = CurrentExecutor::None;
        effects.push(Effect::GiveUpExecutor { reason });
        // First the state, so that nothing enters that would fail at once.
        self.advance_state(EngineState::Unhealthy, effects);
        self.fail_all(&EngineFailure::Unhealthy, now, effects);
    }

    fn fail_all(&mut self, failure: &EngineFailure, now: Timestamp, effects: &mut Vec<Effect>) {
        for request in self.scheduler.requests() {
            self.streams.close(request, Some(failure.clone()), effects);
            let streams = &mut self.streams;
            self.scheduler.abort(request, now, &mut |event| streams.pass_on(event, effects));
        }
    }

    fn pause(&mut self, request: RequestId, now: Timestamp, effects: &mut Vec<Effect>) {
        self.scheduler.pause(request);
        while let Some(request) = self.streams.surplus_paused(self.config.max_paused_requests as usize) {
            self.abort_slow(request, now, effects);
        }
    }

    fn log_step(
        &mut self,
        step: &Step,
        record: StepRecord,
        failure: Option<EngineFailure>,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.iteration_tokens.observe(u64::from(record.n_tokens));
        self.stats.step_seconds += record.duration.as_secs_f64();
        self.streams.trace_step(step.batch(), &record);
        effects.push(Effect::EndStep { record, failure });
    }

    fn advance_state(&mut self, state: EngineState, effects: &mut Vec<Effect>) {
        if self.state < state {
            self.state = state;
            effects.push(Effect::State(state));
        }
    }
}
