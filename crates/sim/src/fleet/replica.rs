//! One replica: the engine's core and its intake as they serve, under a virtual clock, with a cost model in
//! the place of the executor. Does not know gateways.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::engine::{
    Effect, EngineCore, Epoch, Input, Intake, PlainToken, StepDone, StepError, SubmitError,
};
use throng_core::request::{Request, RequestId, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::ExecutorError;
use throng_core::time::{Nanos, Timestamp};

use super::config::ReplicaConfig;
use crate::cost::StepShape;

/// Names the output tokens of requests.
pub trait Outputs {
    /// Output token `index` of a request.
    fn token(&self, request: RequestId, index: u32) -> TokenId;
}

/// A replica that runs.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    core: EngineCore,
    intake: Intake,
    /// The steps in flight, the oldest first.
    steps: VecDeque<Arc<ScheduledBatch>>,
    /// Epoch of the current executor.
    epoch: Epoch,
    /// Time at which the executor has run all its steps.
    idle_from: Timestamp,
    /// Factor on the time of steps.
    pub slowdown: f64,
    /// Number of steps that fail, from the next one on.
    pub n_failing: u32,
    rng: Rng,
    effects: Vec<Effect>,
    output: StepOutput,
}

impl Replica {
    /// A replica without work. With `has_whole_batches` its engine makes the batches of a real executor,
    /// which changes no decision.
    pub fn new(config: ReplicaConfig, has_whole_batches: bool, rng: Rng) -> Self {
        let mut core = EngineCore::new(config.engine.clone(), config.capacity);
        if !has_whole_batches && config.speculation.is_none() {
            core = core.with_plain_shares();
        }
        let intake = Intake::new(&config.engine.scheduler, config.capacity);
        Self {
            core,
            intake,
            config,
            steps: VecDeque::new(),
            epoch: Epoch(0),
            idle_from: Timestamp::default(),
            slowdown: 1.0,
            n_failing: 0,
            rng,
            effects: Vec::new(),
            output: StepOutput::default(),
        }
    }

    /// Settings of the replica.
    pub fn config(&self) -> &ReplicaConfig {
        &self.config
    }

    /// The engine core of the replica.
    pub fn core(&self) -> &EngineCore {
        &self.core
    }

    /// The engine's core, to take news of its cache.
    pub fn core_mut(&mut self) -> &mut EngineCore {
        &mut self.core
    }

    /// The intake of the replica.
    pub fn intake(&mut self) -> &mut Intake {
        &mut self.intake
    }

    /// Submits a request.
    ///
    /// # Errors
    /// When the intake refuses it.
    pub fn submit(&mut self, request: Request, now: Timestamp) -> Result<(), SubmitError> {
        self.intake.enter(&request)?;
        self.apply(&Input::Submit { request, arrived: now }, now);
        Ok(())
    }

    /// Notes that the reader of a request has disconnected.
    pub fn abort(&mut self, request: RequestId, now: Timestamp) {
        self.apply(&Input::Abort(request), now);
    }

    /// A new executor can run steps.
    pub fn take_executor(&mut self, epoch: Epoch, now: Timestamp) {
        self.idle_from = now;
        self.epoch = epoch;
        self.apply(&Input::ExecutorMade { epoch, capacity: self.config.capacity }, now);
    }

    /// Checks deadlines and plans the next steps.
    pub fn tick(&mut self, now: Timestamp) {
        self.apply(&Input::Tick, now);
    }

    fn apply(&mut self, input: &Input, now: Timestamp) {
        self.core.apply(input, now, &mut self.effects);
    }

    /// Takes the effects since the last call; the caller must return the buffer.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Exchanges the tokens of [`Effect::DeliverPlain`] for an empty buffer.
    pub fn swap_plain_tokens(&mut self, tokens: &mut Vec<PlainToken>) {
        self.core.swap_plain_tokens(tokens);
    }

    /// Gives a buffer of effects back.
    pub fn return_effects(&mut self, mut effects: Vec<Effect>) {
        effects.clear();
        if self.effects.is_empty() {
            self.effects = effects;
        }
    }

    /// Begins a step and returns the time of its end, if it is one of the current executor.
    pub fn begin_step(&mut self, batch: Arc<ScheduledBatch>, now: Timestamp) -> Timestamp {
        let cost = self.config.cost.step_time(&shape_of(&batch));
        let factor = self.rng.choice(self.config.cost.spread()).copied().unwrap_or(1.0);
        let took = Nanos((Nanos::from(cost).0 as f64 * self.slowdown * factor) as u64);
        self.idle_from = self.idle_from.max(now) + took;
        self.steps.push_back(batch);
        self.idle_from
    }

    /// Drops the steps in flight: their executor is lost.
    pub fn drop_steps(&mut self) {
        self.steps.clear();
    }

    /// Time at which all steps in flight have ended, if there are any.
    pub fn busy_until(&self) -> Option<Timestamp> {
        (!self.steps.is_empty()).then_some(self.idle_from)
    }

    /// Starts the executor: it can run steps from now on.
    pub fn begin_at(&mut self, now: Timestamp) {
        self.idle_from = now;
    }

    /// Ends the oldest step in flight.
    pub fn end_step(&mut self, outputs: &impl Outputs, now: Timestamp) {
        let Some(batch) = self.steps.pop_front() else { return };
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        let result = if self.n_failing > 0 {
            self.n_failing -= 1;
            Err(StepError::Executor(ExecutorError::Device("it fails as planned".into())))
        } else {
            for scheduled in batch.sequences() {
                output.begin_sequence();
                if scheduled.sample {
                    self.choose(&batch, scheduled, outputs, &mut output);
                }
            }
            for share in batch.plain_shares() {
                output.push_plain(outputs.token(share.id.request, share.n_output));
            }
            Ok(())
        };
        // The scheduler uses the batch's buffers again once nobody holds them.
        drop(batch);
        let done = StepDone { epoch: self.epoch, output, executing: Nanos(0), result };
        let done = Input::StepDone(done);
        self.apply(&done, now);
        if let Input::StepDone(done) = done {
            self.output = done.output;
        }
    }

    /// Answers a sequence: the tokens up to the first draft that is wrong, and drafts for the next step.
    fn choose(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &ScheduledSequence,
        outputs: &impl Outputs,
        output: &mut StepOutput,
    ) {
        let first = scheduled.start + scheduled.n_known() as u32 - scheduled.n_prompt;
        let mut index = first;
        let drafts = batch.drafts(scheduled);
        let mut n_accepted = 0;
        loop {
            let token = outputs.token(scheduled.id.request, index);
            output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
            index += 1;
            if drafts.get(n_accepted) != Some(&token) {
                break;
            }
            n_accepted += 1;
        }
        let Some(speculation) = self.config.speculation else { return };
        for offset in 0..speculation.n_drafts {
            let right = outputs.token(scheduled.id.request, index + offset);
            let is_right = self.rng.f64() < speculation.acceptance;
            let wrong = if right > 0 { right - 1 } else { 1 };
            output.push_draft(if is_right { right } else { wrong });
        }
    }
}

/// The properties of a batch on which its duration depends.
pub fn shape_of(batch: &ScheduledBatch) -> StepShape {
    let mut shape = StepShape { n_sequences: batch.sequences().len() as u32, ..StepShape::default() };
    for scheduled in batch.sequences() {
        let n = scheduled.n_tokens() as u64;
        let start = u64::from(scheduled.start);
        shape.n_tokens += n as u32;
        shape.n_prompt_tokens += scheduled.n_prompt.saturating_sub(scheduled.start).min(n as u32);
        shape.n_logits += if scheduled.sample { 1 + scheduled.n_drafts as u32 } else { 0 };
        shape.n_context_tokens += start + n;
        shape.n_attention_pairs += n * start + n * (n + 1) / 2;
    }
    let n_plain = batch.plain_shares().len() as u32;
    let n_context = batch.plain_shares().iter().map(|share| u64::from(share.start) + 1).sum::<u64>();
    shape.n_sequences += n_plain;
    shape.n_tokens += n_plain;
    shape.n_logits += n_plain;
    shape.n_context_tokens += n_context;
    shape.n_attention_pairs += n_context;
    shape
}
