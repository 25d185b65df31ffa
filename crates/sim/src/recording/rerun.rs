//! The inputs of a recorded engine, applied again to its core, which must plan the same batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use throng_core::engine::recording::{Event, Header, Line, Step, Submit};
use throng_core::engine::{
    END, Effect, EngineCore, Epoch, Input, RecordedOutput, RecordedRequest, StepDone, StepError,
};
use throng_core::request::{Request, RequestId, SamplingParams, SequenceId, TenantId, TokenId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, ScheduledBatch, StepOutput, TokenLogprob};
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::time::{Nanos, Timestamp};

use super::reader::RecordingReader;
use crate::error::SimError;
use crate::workload::content_id;

/// Outcome of a rerun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rerun {
    /// Number of steps that ended, each with its recorded shape.
    pub n_steps: u64,
    /// Line of the first step whose batch differs from the recorded one.
    pub first_difference: Option<u64>,
    /// Number of steps whose batch differs.
    pub n_different: u64,
    /// Number of requests with an unrecorded property that affects batches.
    pub n_special: u64,
    /// Number of inputs that the recording has lost.
    pub n_lost: u64,
}

/// Applies the inputs of a recording again and passes each batch to `on_batch`, in the order of planning. The
/// outputs are taken from the recording: a first pass reads the ends of requests.
///
/// # Errors
/// When the recording is damaged, is not one of an engine, or does not begin with the engine's start.
pub fn rerun(
    mut open: impl FnMut() -> Result<RecordingReader, SimError>,
    mut on_batch: impl FnMut(&ScheduledBatch),
) -> Result<Rerun, SimError> {
    let mut first = open()?;
    check(first.header())?;
    let mut ends: BTreeMap<(u64, u32), RecordedOutput> = BTreeMap::new();
    let mut order: Vec<u32> = Vec::new();
    let mut known = BTreeSet::new();
    while let Some(line) = first.next_line()? {
        match line.event {
            Event::End(end) => {
                ends.insert((end.id, end.index), end.output());
            }
            Event::Submit(submit) if known.insert(submit.tenant) => {
                let before = submit.tenant_after.and_then(|one| order.iter().position(|other| *other == one));
                order.insert(before.map_or(0, |before| before + 1), submit.tenant);
            }
            _ => {}
        }
    }
    let name = |(rank, tenant): (usize, &u32)| (*tenant, TenantId(format!("{rank:08}").into()));
    let tenants = order.iter().enumerate().map(name).collect();
    let mut reader = open()?;
    let Some(engine) = reader.header().engine.clone() else { return Err(not_of_an_engine()) };
    let core = EngineCore::new(engine.config(), engine.capacity);
    let capacity = engine.capacity;
    let mut again = Again {
        core,
        capacity,
        ends,
        tenants,
        requests: BTreeMap::new(),
        steps: VecDeque::new(),
        effects: Vec::new(),
        rerun: Rerun::default(),
    };
    while let Some(line) = reader.next_line()? {
        again.apply(line, reader.n_lines(), &mut on_batch);
    }
    Ok(again.rerun)
}

fn not_of_an_engine() -> SimError {
    SimError::line(1, "it is the recording of a gateway: it has no batches")
}

fn check(header: &Header) -> Result<(), SimError> {
    if header.engine.is_none() {
        return Err(not_of_an_engine());
    }
    match header.part {
        0 => Ok(()),
        part => {
            Err(SimError::line(1, format!("it is part {part}: it does not begin with the engine's start")))
        }
    }
}

/// Output of a continuation that is still running at the end of the recording: tokens that no other
/// continuation has.
fn unended(id: u64, index: u32, max_tokens: u32) -> RecordedOutput {
    let n_blocks = u64::from(max_tokens) / BLOCK_TOKENS as u64 + 2;
    let name = |block| BlockKey(content_id(id, u64::from(index), block));
    RecordedOutput { n_tokens: 0, stops: false, blocks: (0..n_blocks).map(name).collect() }
}

/// An engine that repeats its recorded work.
struct Again {
    core: EngineCore,
    capacity: throng_core::scheduling::executor::ExecutorCapacity,
    ends: BTreeMap<(u64, u32), RecordedOutput>,
    /// Names of tenants in the order of their own.
    tenants: BTreeMap<u32, TenantId>,
    requests: BTreeMap<u64, RecordedRequest>,
    /// The steps in flight, the oldest first.
    steps: VecDeque<Arc<ScheduledBatch>>,
    effects: Vec<Effect>,
    rerun: Rerun,
}

impl Again {
    fn apply(&mut self, line: Line, number: u64, on_batch: &mut impl FnMut(&ScheduledBatch)) {
        let at = line.at();
        let input = match line.event {
            Event::Submit(submit) => {
                let arrived = Timestamp::from_ns(submit.arrived_ns);
                self.rerun.n_special += u64::from(submit.is_special);
                Input::Submit { request: self.request(&submit), arrived }
            }
            Event::Abort(id) => Input::Abort(RequestId(id)),
            Event::AbortSequence(id, index) => {
                Input::AbortSequence(SequenceId { request: RequestId(id), index })
            }
            Event::ReaderBehind(id, n_events) => Input::ReaderBehind { request: RequestId(id), n_events },
            Event::ReaderCaughtUp(id) => Input::ReaderCaughtUp(RequestId(id)),
            Event::Step(step) => self.step_done(&step, number),
            Event::ExecutorMade(epoch) => {
                Input::ExecutorMade { epoch: Epoch(epoch), capacity: self.capacity }
            }
            Event::ExecutorNotMade(epoch) => {
                Input::ExecutorNotMade { epoch: Epoch(epoch), reason: "as recorded".into() }
            }
            Event::Drain(deadline) => Input::Drain { deadline: deadline.map(Timestamp::from_ns) },
            Event::Tick => Input::Tick,
            Event::Lost(n) => {
                self.rerun.n_lost += n;
                return;
            }
            Event::End(_) | Event::Failed { .. } => return,
        };
        self.core.apply(&input, at, &mut self.effects);
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Execute { batch, .. } => {
                    on_batch(&batch);
                    self.steps.push_back(batch);
                }
                Effect::ReplaceExecutor { .. } | Effect::GiveUpExecutor { .. } => self.steps.clear(),
                _ => {}
            }
        }
    }

    fn request(&mut self, submit: &Submit) -> Request {
        let max_tokens = submit.max_tokens.min(self.capacity.max_sequence_tokens);
        let output = |index| {
            let ended = self.ends.get(&(submit.id, index)).cloned();
            ended.unwrap_or_else(|| unended(submit.id, index, max_tokens))
        };
        let recorded = submit.request((0..submit.n).map(output).collect());
        let vocabulary_size = self.capacity.vocabulary_size;
        let mut request = recorded.to_request(vocabulary_size);
        let sampling = SamplingParams {
            min_tokens: submit.min_tokens,
            prompt_logprobs: submit.prompt_logprobs.then_some(0),
            repetition_penalty: if submit.reads_history { 1.1 } else { 1.0 },
            ..(*request.sampling).clone()
        };
        request.sampling = Arc::new(sampling);
        if let Some(name) = self.tenants.get(&submit.tenant) {
            request.tenant = name.clone();
        }
        let so_far = |(index, length): (usize, &Option<u32>)| {
            let token =
                |position| recorded.token(index as u32, recorded.prompt_tokens + position, vocabulary_size);
            length.map(|n| (0..n).map(token).collect::<Arc<[TokenId]>>())
        };
        request.outputs_so_far = submit.resumed.iter().enumerate().map(so_far).collect();
        self.requests.insert(submit.id, recorded);
        request
    }

    /// The end of the oldest step in flight, with the recorded tokens.
    fn step_done(&mut self, step: &Step, number: u64) -> Input {
        let mut output = StepOutput::default();
        let result = match step.failed {
            true => Err(StepError::Panicked("as recorded".into())),
            false => Ok(()),
        };
        // One of an executor that was left comes late, and has no shape.
        if step.n_sequences > 0 {
            let batch = self.steps.pop_front();
            self.compare(step, batch.as_deref(), number);
            batch.iter().for_each(|batch| self.answer(batch, &mut output));
        }
        let executing = Nanos(step.executing_ns);
        Input::StepDone(StepDone { epoch: Epoch(step.epoch), output, executing, result })
    }

    fn compare(&mut self, step: &Step, batch: Option<&ScheduledBatch>, number: u64) {
        self.rerun.n_steps += 1;
        let shape = batch.map_or((0, 0, 0), |batch| {
            let n_sampled = batch.sequences().iter().filter(|scheduled| scheduled.sample).count() as u32;
            (batch.sequences().len() as u32, batch.n_tokens() as u32, n_sampled)
        });
        if shape != (step.n_sequences, step.n_tokens, step.n_sampled) {
            self.rerun.n_different += 1;
            self.rerun.first_difference.get_or_insert(number);
        }
    }

    fn answer(&self, batch: &ScheduledBatch, output: &mut StepOutput) {
        let vocabulary_size = self.capacity.vocabulary_size;
        for scheduled in batch.sequences() {
            output.begin_sequence();
            let Some(recorded) = self.requests.get(&scheduled.id.request.0) else { continue };
            if scheduled.sampling.prompt_logprobs.is_some() {
                let n_left = scheduled.n_prompt.saturating_sub(scheduled.start + 1) as usize;
                for _ in 0..n_left.min(scheduled.n_tokens()) {
                    output.push_prompt(TokenLogprob { token: END, logprob: 0.0, rank: 0 }, &[]);
                }
            }
            if scheduled.sample {
                let position = scheduled.start + scheduled.n_known() as u32;
                let token = recorded.token(scheduled.id.index, position, vocabulary_size);
                output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
            }
        }
    }
}
