//! One engine core with its intake, executors, clients and accidents, under a made-up clock. It does what the
//! engine thread does with inputs and effects, and judges what the core decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use throng_core::constraint::ConstraintError;
use throng_core::request::{Request, RequestId, SequenceId};
use throng_core::scheduling::admission::Refusal;
use throng_core::scheduling::batch::{ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::masks::{MaskPace, SequenceMasks};
use throng_core::scheduling::scheduler::{MaskReport, SchedulerConfig, SchedulingPolicy, SpeculationMethod};
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::request_trace::RequestTrace;
use throng_engine::{
    Effect, EngineConfig, EngineCore, EngineFailure, EngineState, Epoch, Input, Intake, StepDone, StepError,
    SubmitError,
};
use throng_testkit::paper_executor::PaperExecutor;

use super::ledger::Ledger;
use super::readers::Readers;
use super::requests::{RequestSource, one_in};
use super::saboteur::Bug;
use super::seen::Seen;

pub struct World {
    rng: Rng,
    bug: Option<Bug>,
    capacity: ExecutorCapacity,
    config: EngineConfig,
    core: EngineCore,
    intake: Intake,
    source: RequestSource,
    ledger: Ledger,
    readers: Readers,
    now: Timestamp,
    /// Inputs on their way, by the time at which they arrive.
    arrivals: BTreeMap<RequestId, Timestamp>,
    coming: BTreeMap<(Timestamp, u64), Coming>,
    n_sent: u64,
    executors: BTreeMap<Epoch, PaperExecutor>,
    /// Since when sequences wait for masks, by the number of these.
    mask_waits: BTreeMap<(SequenceId, u64), Timestamp>,
    epoch: Epoch,
    /// When the executor that was asked for has to be there.
    awaited: Option<Timestamp>,
    /// The steps in flight, the oldest first.
    steps: VecDeque<InFlight>,
    /// When the current executor has run all steps that it was given.
    idle_from: Timestamp,
    /// The step that the latest input ended.
    ended: Option<InFlight>,
    /// Preemptions before the newest input.
    n_preemptions_before: u64,
    /// Executors that were left in a step and have not come back.
    n_hanging: u32,
    /// No executor can be had any more: the engine has to be unhealthy.
    is_doomed: bool,
    drain: Option<Option<Timestamp>>,
    state: EngineState,
    submitting: Option<Request>,
    /// The ids of all requests that were taken in.
    taken_in: BTreeSet<RequestId>,
    /// Requests that have entered and not left the queue.
    n_queued: usize,
    most_open: usize,
    odds: Odds,
    seen: Seen,
}

/// One in so many.
struct Odds {
    aborts: u32,
    step_faults: u32,
    executor_faults: u32,
    late_masks: u32,
    lost_masks: u32,
    reads: u32,
    drains: u32,
}

struct InFlight {
    batch: Arc<ScheduledBatch>,
    /// When it was planned, or the step before it ended.
    alone_since: Timestamp,
    /// Requests that were paused since it was planned: what it brings for them is dropped.
    paused: BTreeSet<RequestId>,
    /// Preemptions before the input that planned it, which may have planned the next one as well.
    n_preemptions: u64,
}

/// Something that will become an input.
enum Coming {
    Step { epoch: Epoch, batch: Arc<ScheduledBatch>, fault: Option<Fault> },
    Executor { epoch: Epoch, capacity: Option<ExecutorCapacity> },
    CaughtUp(RequestId),
    Masks(Arc<SequenceMasks>),
    Request { request: Request, arrived: Timestamp },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Error,
    Panic,
    Row(usize),
}

impl World {
    pub fn new(mut rng: Rng, bug: Option<Bug>) -> Self {
        let rng = &mut rng;
        let capacity = ExecutorCapacity {
            n_blocks: rng.u32(3..40),
            max_batch_tokens: rng.u32(1..200),
            max_batch_sequences: rng.u32(1..20),
            max_sequence_tokens: rng.u32(20..300),
            vocabulary_size: rng.u32(8..40),
            n_state_slots: if rng.bool() { 0 } else { rng.u32(1..50) },
            max_steps_in_flight: rng.u32(1..=2),
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let scheduler = SchedulerConfig {
            inter_token_target_ms: rng.u32(0..40),
            max_queued_requests: rng.u32(1..20),
            max_queued_tokens: rng.u64(10..3_000),
            speculation: *rng
                .choice(&[SpeculationMethod::None, SpeculationMethod::PromptLookup])
                .expect("not empty"),
            prefix_caching: !one_in(rng, 4),
            policy: if one_in(rng, 3) { SchedulingPolicy::Fcfs } else { SchedulingPolicy::Priority },
            ..SchedulerConfig::default()
        };
        let config = EngineConfig {
            scheduler,
            step_timeout_ms: rng.u64(500..2_000),
            executor_timeout_ms: rng.u64(1_000..60_000),
            max_abandoned_threads: rng.u32(0..4),
            max_buffered_events: rng.u32(2..20),
            max_paused_requests: rng.u32(0..16),
            pause_timeout_ms: rng.u64(20..2_000),
            mask_timeout_ms: rng.u64(20..2_000),
            queue_timeout_ms: if one_in(rng, 4) { rng.u64(20..5_000) } else { 0 },
            ..EngineConfig::default()
        };
        let late_masks = if one_in(rng, 4) { u32::MAX } else { rng.u32(1..10) };
        let core_config = bug.map_or(config.clone(), |bug| bug.spoil_config(config.clone()));
        Self {
            bug,
            capacity,
            core: EngineCore::new(core_config, capacity),
            intake: Intake::new(&config.scheduler, capacity),
            config,
            source: RequestSource::new(rng, &capacity),
            ledger: Ledger::default(),
            readers: Readers::default(),
            now: Timestamp::default(),
            coming: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            n_sent: 0,
            executors: BTreeMap::from([(
                Epoch(0),
                PaperExecutor::new(capacity).with_late_masks(rng.fork(), late_masks),
            )]),
            mask_waits: BTreeMap::new(),
            epoch: Epoch(0),
            awaited: None,
            steps: VecDeque::new(),
            idle_from: Timestamp::default(),
            ended: None,
            n_preemptions_before: 0,
            n_hanging: 0,
            is_doomed: false,
            drain: None,
            state: EngineState::Running,
            submitting: None,
            taken_in: BTreeSet::new(),
            n_queued: 0,
            most_open: rng.usize(1..30),
            odds: Odds {
                aborts: rng.u32(3..60),
                step_faults: if one_in(rng, 4) { u32::MAX } else { rng.u32(5..100) },
                executor_faults: rng.u32(4..20),
                late_masks,
                lost_masks: rng.u32(20..200),
                reads: rng.u32(1..6),
                drains: if one_in(rng, 2) { u32::MAX } else { rng.u32(50..800) },
            },
            seen: Seen::default(),
            rng: rng.fork(),
        }
    }

    /// Runs for `n_inputs` with arrivals, then until nothing is left.
    pub fn run(mut self, n_inputs: usize) -> Result<Seen, String> {
        let mut turns_after_end = 20;
        while self.seen.inputs < n_inputs && turns_after_end > 0 {
            self.let_clients_act()?;
            self.turn()?;
            turns_after_end -= usize::from(self.state >= EngineState::Unhealthy);
        }
        self.most_open = 0;
        let mut patience = 200_000;
        while self.ledger.n_open() > 0 || self.n_queued > 0 {
            for _ in 0..4 {
                self.read(30);
            }
            self.turn()?;
            patience -= 1;
            if patience == 0 {
                return Err(format!("{} requests do not come to an end", self.ledger.n_open()));
            }
        }
        self.apply(Input::Drain { deadline: None })?;
        // A step of aborted sequences may still be in flight.
        while self.state != EngineState::Stopped {
            self.turn()?;
        }
        self.check_end()
    }

    fn check_end(mut self) -> Result<Seen, String> {
        let stats = self.core.stats().scheduler;
        if stats.used_blocks + stats.running + stats.waiting + stats.paused > 0 {
            return Err(format!("something is left: {stats:?}"));
        }
        if self.intake.queued() != (0, 0) || self.n_queued > 0 {
            return Err(format!("{:?} requests and tokens wait for ever", self.intake.queued()));
        }
        self.seen.finished = self.ledger.n_finished;
        self.seen.aborted = self.ledger.n_aborted;
        self.seen.failed_sequences = self.ledger.n_failed_sequences;
        self.seen.preemptions = stats.counters.preemptions as usize;
        self.seen.beams = self.ledger.n_beams;
        self.seen.hit_tokens = stats.counters.cache_hit_tokens as usize;
        Ok(self.seen)
    }

    fn let_clients_act(&mut self) -> Result<(), String> {
        while self.ledger.n_open() < self.most_open && one_in(&mut self.rng, 3) {
            let request = self.source.next(&mut self.rng);
            self.submit(request);
        }
        if one_in(&mut self.rng, 200)
            && let Some(id) = self.ledger.some_open(&mut self.rng)
        {
            let request = self.source.next(&mut self.rng);
            self.submit(Request { id, ..request });
        }
        if one_in(&mut self.rng, self.odds.aborts) {
            self.abort()?;
        }
        if one_in(&mut self.rng, self.odds.reads) {
            let n = self.rng.usize(1..40);
            self.read(n);
        }
        if one_in(&mut self.rng, self.odds.drains) {
            let limit = Nanos::from_ms(self.rng.u64(0..3_000));
            let deadline = self.rng.bool().then_some(self.now + limit);
            self.intake.advance_state(EngineState::Draining);
            self.apply(Input::Drain { deadline })?;
        }
        Ok(())
    }

    /// A request enters, or not, and is on its way to the engine.
    fn submit(&mut self, request: Request) {
        match self.intake.enter(&request) {
            Ok(()) => {
                self.n_queued += 1;
                // Now and then the engine does not look for a while.
                let most = if one_in(&mut self.rng, 2) { 800_000_000 } else { 1_000_000 };
                let (arrived, delay) = (self.now, self.rng.u64(0..most));
                self.send(Nanos(delay), Coming::Request { request, arrived });
            }
            Err(SubmitError::Refused(Refusal::QueueFull { .. })) => self.seen.queue_full += 1,
            Err(SubmitError::Refused(_)) => self.seen.never_fits += 1,
            Err(SubmitError::Draining | SubmitError::Unhealthy) => {}
        }
    }

    fn abort(&mut self) -> Result<(), String> {
        let some = self.source.some_id(&mut self.rng);
        let request = self.ledger.some_open(&mut self.rng).filter(|_| self.rng.bool()).unwrap_or(some);
        if self.rng.bool() {
            self.ledger.cancel(request, None);
            self.apply(Input::Abort(request))
        } else {
            let index = self.rng.u32(0..3);
            self.ledger.cancel(request, Some(index));
            self.apply(Input::AbortSequence(SequenceId { request, index }))
        }
    }

    fn read(&mut self, n: usize) {
        if let Some(request) = self.readers.read(&mut self.rng, n) {
            let delay = self.rng.u64(0..2_000_000);
            self.send(Nanos(delay), Coming::CaughtUp(request));
        }
    }

    fn send(&mut self, delay: Nanos, coming: Coming) {
        self.n_sent += 1;
        self.coming.insert((self.now + delay, self.n_sent), coming);
    }

    /// What the engine thread does in one turn: everything that has arrived, then a tick.
    fn turn(&mut self) -> Result<(), String> {
        let next = self.coming.keys().next().map(|(time, _)| *time);
        let wait = one_in(&mut self.rng, 2);
        if let Some(time) = next.into_iter().chain(self.core.next_deadline()).min()
            && wait
        {
            // Now and then more than one arrives at a time, or a deadline is seen late.
            let late = if one_in(&mut self.rng, 8) { self.rng.u64(0..50_000_000) } else { 0 };
            self.now = self.now.max(time + Nanos(late));
        }
        let first_later = (self.now + Nanos(1), 0);
        let later = self.coming.split_off(&first_later);
        for coming in std::mem::replace(&mut self.coming, later).into_values() {
            if let Some(input) = self.arrive(coming) {
                self.apply(input)?;
            }
        }
        self.apply(Input::Tick)?;
        self.check_after_tick()
    }

    /// The input that arrives; none of a step that its executor has not come to.
    fn arrive(&mut self, coming: Coming) -> Option<Input> {
        let input = match coming {
            Coming::CaughtUp(request) => Input::ReaderCaughtUp(request),
            Coming::Masks(masks) => {
                masks.evaluate(self.capacity.vocabulary_size, || MaskPace::Continue);
                self.mask_waits.remove(&(masks.sequence(), masks.number()));
                let took = Nanos(if one_in(&mut self.rng, 4) { 40_000_000 } else { 100_000 });
                let (sequence, number) = (masks.sequence(), masks.number());
                Input::MasksEvaluated(MaskReport { sequence, number, took, charged: took })
            }
            Coming::Request { mut request, arrived } => {
                if self.taken_in.contains(&request.id) && !self.is_in_use(request.id) {
                    // The request whose id it has is gone: no id is used twice.
                    request.id = self.source.next_id();
                }
                if !self.is_in_use(request.id) {
                    self.arrivals.insert(request.id, arrived);
                }
                self.submitting = Some(request.clone());
                Input::Submit { request, arrived }
            }
            Coming::Executor { epoch, capacity: None } => {
                Input::ExecutorNotMade { epoch, reason: "as the test wants it".into() }
            }
            Coming::Executor { epoch, capacity: Some(capacity) } => {
                let executor = self.new_executor(capacity);
                self.executors.insert(epoch, executor);
                Input::ExecutorMade { epoch, capacity }
            }
            Coming::Step { epoch, batch, fault } => {
                let mut output = StepOutput::default();
                if self.bug == Some(Bug::CacheKeptAcrossExecutors) && one_in(&mut self.rng, 20) {
                    let executor = self.new_executor(self.capacity);
                    self.executors.insert(epoch, executor);
                }
                let _ = self.executors.get_mut(&epoch)?.execute(&batch, &mut output);
                for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
                    let masks = scheduled.masks.as_ref().filter(|_| output.is_left_out(sequence_idx));
                    masks.cloned().into_iter().for_each(|masks| {
                        self.seen.left_out += 1;
                        self.evaluate(masks);
                    });
                }
                let result = match fault {
                    Some(Fault::Error) => {
                        Err(StepError::Executor(ExecutorError::Device("as the test wants it".into())))
                    }
                    Some(Fault::Panic) => Err(StepError::Panicked("as the test wants it".into())),
                    Some(Fault::Row(_)) | None => Ok(()),
                };
                if result.is_err() || epoch != self.epoch || self.is_doomed {
                    self.executors.remove(&epoch);
                }
                if let Some(Fault::Row(sequence_idx)) = fault {
                    output = with_failed_sequence(&output, sequence_idx);
                    if epoch == self.epoch {
                        self.ledger.failed_sequences.insert(batch.sequences()[sequence_idx].id.request);
                    }
                }
                if result.is_err() {
                    output.clear();
                }
                Input::StepDone(StepDone { epoch, output, executing: Nanos::default(), result })
            }
        };
        Some(input)
    }

    fn new_executor(&mut self, capacity: ExecutorCapacity) -> PaperExecutor {
        PaperExecutor::new(capacity).with_late_masks(self.rng.fork(), self.odds.late_masks)
    }

    /// Masks are there after a while, or never.
    fn evaluate(&mut self, masks: Arc<SequenceMasks>) {
        self.mask_waits.insert((masks.sequence(), masks.number()), self.now);
        if !one_in(&mut self.rng, self.odds.lost_masks) {
            let delay = Nanos(self.rng.u64(0..40_000_000));
            self.send(delay, Coming::Masks(masks));
        }
    }

    fn is_in_use(&self, id: RequestId) -> bool {
        self.ledger.is_open(id) || self.core.scheduler().is_alive(id)
    }

    fn apply(&mut self, input: Input) -> Result<(), String> {
        let mut following = VecDeque::from([input]);
        while let Some(input) = following.pop_front() {
            self.seen.inputs += 1;
            self.now = self.now + Nanos(self.rng.u64(0..1_000));
            let expected = self.expect(&input);
            let mut effects = Vec::new();
            let (mut input, mut now) = (Some(input), self.now);
            if let Some(bug) = self.bug {
                input = input.and_then(|input| bug.spoil_input(input, self.epoch, self.capacity));
                now = bug.spoil_time(now, self.step_deadline());
            }
            self.n_preemptions_before = self.core.stats().scheduler.counters.preemptions;
            if let Some(input) = &input {
                self.core.apply(input, now, &mut effects);
            }
            if let Some(bug) = self.bug {
                bug.spoil_effects(&mut effects);
            }
            if expected == Expected::Nothing && !effects.is_empty() {
                return Err(format!("{input:?} had effects: {effects:?}"));
            }
            for effect in effects {
                let told = format!("{effect:?}");
                let told = |problem: String| format!("{told}: {problem}");
                following.extend(self.carry_out(effect, &expected).map_err(told)?);
            }
            self.check_after(&expected)?;
            self.ledger.failed_sequences.clear();
        }
        Ok(())
    }

    /// What an input has to lead to, as far as it does not concern one request alone.
    fn expect(&mut self, input: &Input) -> Expected {
        let stopped = self.state == EngineState::Stopped;
        match input {
            Input::Submit { .. } => {}
            _ if stopped => return Expected::Nothing,
            Input::StepDone(done) if self.awaited.is_some() || self.is_doomed || done.epoch != self.epoch => {
                self.n_hanging -= 1;
                self.seen.late_steps += 1;
                return Expected::Nothing;
            }
            Input::StepDone(StepDone { result: Err(error), .. }) => {
                return Expected::FailedStep(match error {
                    StepError::Executor(reason) => EngineFailure::StepFailed(reason.clone()),
                    StepError::Panicked(_) => EngineFailure::StepPanicked,
                });
            }
            Input::ExecutorMade { epoch, capacity } if self.awaited.is_some() && *epoch == self.epoch => {
                self.awaited = None;
                if *capacity == self.capacity {
                    self.seen.executors_replaced += 1;
                } else {
                    self.is_doomed = true;
                }
            }
            Input::ExecutorNotMade { epoch, .. } if self.awaited.is_some() && *epoch == self.epoch => {
                self.awaited = None;
                self.is_doomed = true;
            }
            Input::ExecutorMade { .. } | Input::ExecutorNotMade { .. } => return Expected::Nothing,
            Input::ReaderBehind { request, .. } => {
                let before = self.ledger.paused().0;
                self.ledger.fall_behind(*request, self.now);
                self.seen.paused += self.ledger.paused().0 - before;
                for step in &mut self.steps {
                    step.paused.insert(*request);
                }
            }
            Input::ReaderCaughtUp(request) => {
                self.seen.resumed += usize::from(self.ledger.catch_up(*request));
            }
            Input::Drain { deadline } => {
                let before = self.drain.flatten();
                self.drain = Some(before.into_iter().chain(*deadline).min());
            }
            Input::Tick if self.step_deadline().is_some_and(|deadline| deadline <= self.now) => {
                self.n_hanging += 1;
                self.is_doomed |= self.n_hanging > self.config.max_abandoned_threads;
                let timeout_ms = self.config.step_timeout_ms;
                return Expected::FailedStep(EngineFailure::StepTimedOut { timeout_ms });
            }
            Input::Tick if self.awaited.is_some_and(|deadline| deadline <= self.now) => {
                self.awaited = None;
                self.is_doomed = true;
            }
            Input::StepDone(_)
            | Input::MasksEvaluated(_)
            | Input::StoreOpened { .. }
            | Input::BlockWritten { .. }
            | Input::BlockRead { .. }
            | Input::ExportBlocks(_)
            | Input::Abort(_)
            | Input::AbortSequence(_)
            | Input::Tick => {}
        }
        Expected::Anything
    }

    /// Carries out an effect as the engine thread does. What the core has to be told then.
    fn carry_out(&mut self, effect: Effect, expected: &Expected) -> Result<Option<Input>, String> {
        match effect {
            Effect::Accept(id) => {
                let request = self.submitting.take().ok_or("nobody asked")?;
                if id != request.id || self.ledger.is_open(id) || self.state >= EngineState::Unhealthy {
                    return Err("it had to be refused".into());
                }
                self.taken_in.insert(id);
                self.ledger.open(&request, &self.capacity);
                let high_mark = (self.config.max_buffered_events as usize).max(8 * request.n as usize);
                self.readers.open(&request, high_mark);
            }
            Effect::Refuse { request, failure } => self.note_refusal(request, &failure)?,
            Effect::LeaveQueue { n_tokens } => {
                self.n_queued = self.n_queued.checked_sub(1).ok_or("nobody is in the queue")?;
                self.intake.leave_queue(n_tokens);
            }
            Effect::Deliver { request, event } => {
                self.ledger.note(request, &event)?;
                let behind = self.readers.deliver(request, &event)?;
                return Ok(behind.map(|n_events| Input::ReaderBehind { request, n_events }));
            }
            Effect::Close { request, failure, trace } => {
                self.check_trace(&trace)?;
                if let Some(failure) = &failure {
                    self.check_failure(request, failure, expected)?;
                }
                self.ledger.close(request, failure.as_ref())?;
                self.readers.close(request);
            }
            Effect::Execute { epoch, batch } => self.execute(epoch, batch)?,
            Effect::EvaluateMasks(masks) => {
                self.seen.begun_masks += 1;
                self.evaluate(masks);
            }
            Effect::OrderStore(_) => return Err("there is no store".into()),
            Effect::DeliverPlain { .. } => return Err("tokens without log-probabilities".into()),
            Effect::EndStep { failure, .. } => self.end_step(failure, expected)?,
            Effect::ReplaceExecutor { epoch } => self.replace_executor(epoch)?,
            Effect::GiveUpExecutor { .. } if !self.is_doomed => {
                return Err("it could have been replaced".into());
            }
            Effect::GiveUpExecutor { .. } => self.seen.executors_not_replaced += 1,
            Effect::State(state) => self.advance_state(state)?,
        }
        Ok(None)
    }

    /// No part of a trace is longer than the whole.
    fn check_trace(&self, trace: &RequestTrace) -> Result<(), String> {
        let waits = trace.waits.sequences.0 + trace.waits.blocks.0 + trace.waits.step_tokens.0;
        let ends = trace.chunks.iter().map(|chunk| chunk.at.0 + chunk.took.0);
        let is_whole = waits <= trace.queued.0
            && trace.queued <= trace.end
            && ends.max().is_none_or(|last| last <= trace.end.0)
            && trace.paused <= trace.end
            && trace.prefill.executing <= trace.prefill.took;
        if is_whole { Ok(()) } else { Err(format!("its parts are longer than itself: {trace:?}")) }
    }

    fn note_refusal(&mut self, request: RequestId, failure: &EngineFailure) -> Result<(), String> {
        self.submitting.take().filter(|submitted| submitted.id == request).ok_or("nobody asked")?;
        let (is_right, count) = match failure {
            EngineFailure::DuplicateId => (self.is_in_use(request), &mut self.seen.duplicate_ids),
            EngineFailure::Unhealthy => (self.is_doomed, &mut self.seen.refused_unhealthy),
            EngineFailure::Stopped => (self.state == EngineState::Stopped, &mut self.seen.refused_stopped),
            _ => return Err("no reason to refuse".into()),
        };
        *count += 1;
        if is_right { Ok(()) } else { Err("it is not so".into()) }
    }

    /// Judges why a request failed.
    fn check_failure(
        &mut self,
        request: RequestId,
        failure: &EngineFailure,
        expected: &Expected,
    ) -> Result<(), String> {
        let is_deserved = match failure {
            EngineFailure::StepTimedOut { .. }
            | EngineFailure::StepPanicked
            | EngineFailure::StepFailed(_) => *expected == Expected::FailedStep(failure.clone()),
            EngineFailure::SequenceFailed(SequenceError::Constraint(ConstraintError::LimitExceeded)) => {
                self.seen.mask_timeouts += 1;
                self.ledger.failed_sequences.insert(request);
                let timeout = Nanos::from_ms(self.config.mask_timeout_ms);
                let mut waits = self.mask_waits.iter().filter(|((id, _), _)| id.request == request);
                waits.any(|(_, since)| *since + timeout <= self.now)
            }
            // The ledger knows.
            EngineFailure::SequenceFailed(_) => true,
            EngineFailure::SlowReader { .. } => {
                let since = self.ledger.paused_since(request).ok_or("its reader is not behind")?;
                let is_overdue = since + Nanos::from_ms(self.config.pause_timeout_ms) <= self.now;
                let is_surplus = self.ledger.paused().0 > self.config.max_paused_requests as usize;
                self.seen.slow_readers += usize::from(is_overdue);
                self.seen.surplus_paused += usize::from(is_surplus);
                is_overdue || is_surplus
            }
            EngineFailure::QueueTimedOut { timeout_ms } => {
                let arrived = *self.arrivals.get(&request).ok_or("it has not come")?;
                self.seen.queue_timeouts += 1;
                *timeout_ms == self.config.queue_timeout_ms
                    && *timeout_ms > 0
                    && arrived + Nanos::from_ms(*timeout_ms) <= self.now
            }
            EngineFailure::Unhealthy => self.is_doomed,
            EngineFailure::Stopped => self.drain.flatten().is_some_and(|deadline| deadline <= self.now),
            EngineFailure::Refused(_) | EngineFailure::DuplicateId => false,
        };
        if is_deserved { Ok(()) } else { Err("it does not deserve that".into()) }
    }

    /// When the oldest step in flight has to be given up.
    fn step_deadline(&self) -> Option<Timestamp> {
        self.steps.front().map(|step| step.alone_since + Nanos::from_ms(self.config.step_timeout_ms))
    }

    fn execute(&mut self, epoch: Epoch, batch: Arc<ScheduledBatch>) -> Result<(), String> {
        let is_busy = self.steps.len() == self.capacity.max_steps_in_flight as usize;
        if is_busy || self.awaited.is_some() || self.is_doomed || epoch != self.epoch {
            return Err("no executor is free".into());
        }
        if self.state == EngineState::Stopped {
            return Err("the engine has stopped".into());
        }
        let most_sequences =
            self.capacity.max_batch_sequences.min(self.config.scheduler.max_batch_sequences) as usize;
        if batch.n_tokens() > self.capacity.max_batch_tokens as usize
            || batch.sequences().len() > most_sequences
        {
            return Err("the batch is too large".into());
        }
        self.ledger.check_batch(&batch)?;
        self.seen.steps += 1;
        self.seen.steps_ahead += self.steps.len();
        self.seen.carried += batch.sequences().iter().filter(|scheduled| scheduled.carried.is_some()).count();
        self.seen.sequences += batch.sequences().len();
        let usual = 1_000_000 + 100_000 * batch.n_tokens() as u64;
        let (mut duration, mut fault) = (Nanos(usual), None);
        if one_in(&mut self.rng, self.odds.step_faults) {
            match self.rng.u32(0..5) {
                0 => fault = Some(Fault::Error),
                1 => fault = Some(Fault::Panic),
                2 => fault = Some(Fault::Row(self.rng.usize(0..batch.sequences().len()))),
                _ => duration = Nanos::from_ms(self.config.step_timeout_ms + self.rng.u64(1..3_000)),
            }
        } else if one_in(&mut self.rng, 30) {
            duration = Nanos(usual * self.rng.u64(1..10));
        }
        self.idle_from = self.idle_from.max(self.now) + duration;
        self.send(self.idle_from.since(self.now), Coming::Step { epoch, batch: Arc::clone(&batch), fault });
        let n_preemptions = self.n_preemptions_before;
        let (alone_since, paused) = (self.now, BTreeSet::new());
        self.steps.push_back(InFlight { batch, alone_since, paused, n_preemptions });
        Ok(())
    }

    fn end_step(&mut self, failure: Option<EngineFailure>, expected: &Expected) -> Result<(), String> {
        self.ended = Some(self.steps.pop_front().ok_or("no step is in flight")?);
        if failure.is_some() {
            self.steps.clear();
        }
        if let Some(next) = self.steps.front_mut() {
            next.alone_since = self.now;
        }
        match (&failure, expected) {
            (None, Expected::Anything) => {}
            (Some(failure), Expected::FailedStep(expected)) if failure == expected => {}
            _ => return Err(format!("expected {expected:?}")),
        }
        let count = match failure {
            None => return Ok(()),
            Some(EngineFailure::StepTimedOut { .. }) => &mut self.seen.timed_out_steps,
            Some(EngineFailure::StepPanicked) => &mut self.seen.panicked_steps,
            Some(_) => &mut self.seen.failed_steps,
        };
        *count += 1;
        Ok(())
    }

    fn replace_executor(&mut self, epoch: Epoch) -> Result<(), String> {
        if self.is_doomed {
            return Err("too many hang".into());
        }
        if epoch != Epoch(self.epoch.0 + 1) {
            return Err("another epoch is next".into());
        }
        self.epoch = epoch;
        self.idle_from = self.now;
        self.awaited = Some(self.now + Nanos::from_ms(self.config.executor_timeout_ms));
        let smaller = ExecutorCapacity { n_blocks: self.capacity.n_blocks - 1, ..self.capacity };
        let (mut delay, mut capacity) = (self.rng.u64(0..500), Some(self.capacity));
        if one_in(&mut self.rng, self.odds.executor_faults) {
            match self.rng.u32(0..3) {
                0 => delay += 60_000,
                1 => capacity = Some(smaller),
                _ => capacity = None,
            }
        }
        self.send(Nanos::from_ms(delay), Coming::Executor { epoch, capacity });
        Ok(())
    }

    fn advance_state(&mut self, state: EngineState) -> Result<(), String> {
        let is_right = match state {
            EngineState::Running => false,
            EngineState::Draining | EngineState::Stopped => self.drain.is_some(),
            EngineState::Unhealthy => self.is_doomed,
        };
        if !is_right || state <= self.state {
            return Err(format!("after {:?}", self.state));
        }
        if state == EngineState::Stopped {
            if self.ledger.n_open() > 0 {
                return Err("streams are open".into());
            }
            if self.drain.flatten().is_some_and(|deadline| deadline <= self.now) {
                self.seen.drains_cut_short += 1;
            } else {
                self.seen.drains_finished += 1;
            }
        }
        self.state = state;
        self.intake.advance_state(state);
        Ok(())
    }

    /// What has to hold after each input.
    fn check_after(&mut self, expected: &Expected) -> Result<(), String> {
        if self.submitting.is_some() {
            return Err("a request was neither taken in nor refused".into());
        }
        let ended = self.ended.take();
        match (expected, &ended) {
            // A sequence that was preempted meanwhile is computed again.
            (Expected::FailedStep(_), Some(step))
                if step.n_preemptions == self.core.stats().scheduler.counters.preemptions =>
            {
                self.ledger.check_failed_step(&step.batch, &step.paused)?;
            }
            (Expected::FailedStep(_), Some(_)) => {}
            (Expected::FailedStep(failure), None) => return Err(format!("{failure}, and the step goes on")),
            (Expected::Anything | Expected::Nothing, _) => {}
        }
        if self.is_doomed && self.state < EngineState::Unhealthy {
            return Err("it is without an executor and not unhealthy".into());
        }
        if self.core.state() != self.state {
            return Err(format!("it is {:?} and said {:?}", self.core.state(), self.state));
        }
        if self.ledger.paused().0 > self.config.max_paused_requests as usize {
            return Err("more are paused than may be".into());
        }
        if self.n_queued > self.config.scheduler.max_queued_requests as usize {
            return Err("more wait than may".into());
        }
        if ended.is_some() || one_in(&mut self.rng, 8) {
            self.core.scheduler().check_invariants()?;
        }
        Ok(())
    }

    /// What has to hold after each tick.
    fn check_after_tick(&self) -> Result<(), String> {
        if self.state == EngineState::Stopped {
            return Ok(());
        }
        let of_pause =
            self.ledger.paused().1.map(|since| since + Nanos::from_ms(self.config.pause_timeout_ms));
        let deadlines = [
            ("a step", self.step_deadline()),
            ("a pause", of_pause),
            ("an executor", self.awaited),
            ("a drain", self.drain.flatten()),
            ("something", self.core.next_deadline()),
        ];
        if let Some((what, _)) =
            deadlines.iter().find(|(_, deadline)| deadline.is_some_and(|d| d <= self.now))
        {
            return Err(format!("{what} has outlived its deadline"));
        }
        let may_run = self.steps.is_empty() && self.awaited.is_none() && !self.is_doomed;
        let waits_for_masks = self.core.stats().scheduler.awaiting_masks > 0;
        if may_run && self.ledger.has_work() && !waits_for_masks {
            return Err("there is work but no step".into());
        }
        if self.drain.is_some() && self.steps.is_empty() && self.ledger.n_open() == 0 {
            return Err("nothing is left and it does not stop".into());
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
enum Expected {
    Anything,
    Nothing,
    FailedStep(EngineFailure),
}

/// The output with the answer of one sequence replaced by an error.
fn with_failed_sequence(output: &StepOutput, failing_sequence: usize) -> StepOutput {
    let mut copy = StepOutput::default();
    for sequence_idx in 0..output.n_sequences() {
        copy.begin_sequence();
        output.prompt(sequence_idx).for_each(|token| copy.push_prompt(token.chosen, token.top));
        output.sampled(sequence_idx).for_each(|token| copy.push_sampled(token.chosen, token.top));
        if output.is_left_out(sequence_idx) {
            copy.leave_out_sequence();
        }
        if sequence_idx == failing_sequence {
            copy.fail_sequence(SequenceError::InvalidLogits);
        }
    }
    copy
}
