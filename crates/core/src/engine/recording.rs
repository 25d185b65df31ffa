//! A recording of an engine or a gateway, line by line: arrivals, lengths, the names of blocks under a secret
//! salt, limits of sampling, ends, durations of steps; never text and never token ids. Does not know files.
//!
//! An engine's recording that is whole from its start gives the same batches when its inputs are applied
//! again to an [`EngineCore`](super::EngineCore), as long as nothing of a request's content decides about
//! them: drafts found in the text, constraints and beam searches are not recorded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::config::EngineConfig;
use super::engine_core::{Effect, Input};
use super::error::StreamEvent;
use super::recorded_load::RecordedOutput;
use crate::request::{FinishReason, Request, RequestId, SequenceId, TenantId, TokenId};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::{BlockHash, BlockKey};
use crate::scheduling::executor::ExecutorCapacity;
use crate::scheduling::scheduler::SchedulerConfig;
use crate::time::{Nanos, Timestamp};

/// Version of the format.
pub const VERSION: u32 = 1;

/// First line of each file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub throng_recording: u32,
    /// Number of the file among those of one process, from 0.
    pub part: u64,
    /// Time of the recording's origin in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The engine; `None` in the recording of a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<RecordedEngine>,
}

/// Settings of an engine on which its batches depend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedEngine {
    /// Capacity of its executor.
    pub capacity: ExecutorCapacity,
    /// Settings of its scheduler.
    pub scheduler: SchedulerConfig,
    /// [`EngineConfig::step_timeout_ms`].
    pub step_timeout_ms: u64,
    /// [`EngineConfig::queue_timeout_ms`].
    pub queue_timeout_ms: u64,
    /// [`EngineConfig::mask_timeout_ms`].
    pub mask_timeout_ms: u64,
    /// [`EngineConfig::pause_timeout_ms`].
    pub pause_timeout_ms: u64,
    /// [`EngineConfig::max_paused_requests`].
    pub max_paused_requests: u32,
    /// [`EngineConfig::max_abandoned_threads`].
    pub max_abandoned_threads: u32,
}

impl RecordedEngine {
    /// The settings of an engine.
    pub fn new(config: &EngineConfig, capacity: ExecutorCapacity) -> Self {
        Self {
            capacity,
            scheduler: config.scheduler.clone(),
            step_timeout_ms: config.step_timeout_ms,
            queue_timeout_ms: config.queue_timeout_ms,
            mask_timeout_ms: config.mask_timeout_ms,
            pause_timeout_ms: config.pause_timeout_ms,
            max_paused_requests: config.max_paused_requests,
            max_abandoned_threads: config.max_abandoned_threads,
        }
    }

    /// An engine with these settings.
    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            scheduler: self.scheduler.clone(),
            step_timeout_ms: self.step_timeout_ms,
            queue_timeout_ms: self.queue_timeout_ms,
            mask_timeout_ms: self.mask_timeout_ms,
            pause_timeout_ms: self.pause_timeout_ms,
            max_paused_requests: self.max_paused_requests,
            max_abandoned_threads: self.max_abandoned_threads,
            ..EngineConfig::default()
        }
    }
}

/// A line behind the header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds since the origin.
    #[serde(rename = "t")]
    pub at_ns: u64,
    /// The event.
    #[serde(rename = "e")]
    pub event: Event,
}

/// Events of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request came.
    Submit(Box<Submit>),
    /// A continuation ended.
    End(End),
    /// A request ended without an end of its continuations, or was refused.
    Failed {
        /// The request.
        id: u64,
    },
    /// The reader of a request was gone.
    Abort(u64),
    /// One continuation needed no more tokens.
    AbortSequence(u64, u32),
    /// The reader of a request was behind by that many events.
    ReaderBehind(u64, usize),
    /// The reader of a request had caught up.
    ReaderCaughtUp(u64),
    /// A step ended.
    Step(Step),
    /// An executor was made.
    ExecutorMade(u64),
    /// An executor could not be made.
    ExecutorNotMade(u64),
    /// The engine was told to finish, at the latest then.
    Drain(Option<u64>),
    /// Deadlines were checked and steps planned.
    Tick,
    /// So many inputs are missing here, since they could not be written in time.
    Lost(u64),
}

/// A request without its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Submit {
    /// Its number.
    pub id: u64,
    /// Nanoseconds since the origin when it was handed in.
    pub arrived_ns: u64,
    /// Number of its tenant, in the order in which tenants came.
    pub tenant: u32,
    /// Of a tenant that comes for the first time, the one directly before it in the order of names, which
    /// decides where two tenants are equal; `None`: it is the first.
    #[serde(skip_serializing_if = "is_default")]
    pub tenant_after: Option<u32>,
    /// Priority among the tenant's requests.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i32,
    /// Number of its adapter in the executors.
    #[serde(skip_serializing_if = "is_default")]
    pub adapter: Option<u32>,
    /// Number of continuations.
    #[serde(skip_serializing_if = "is_default")]
    pub n: u32,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Names of the full blocks of its prompt, under the salt of the recording.
    pub prompt_blocks: Vec<BlockKey>,
    /// Most tokens of an output.
    pub max_tokens: u32,
    /// Fewest tokens of an output.
    #[serde(skip_serializing_if = "is_default")]
    pub min_tokens: u32,
    /// Whether the log-probabilities of its prompt are wanted, so that the cache is not used.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_logprobs: bool,
    /// Whether choosing its tokens reads those before.
    #[serde(skip_serializing_if = "is_default")]
    pub reads_history: bool,
    /// Whether it has a constraint or a beam search, which a replay leaves out.
    #[serde(skip_serializing_if = "is_default")]
    pub is_special: bool,
    /// Of a resumed request, the output tokens of each continuation so far; `None` for one that has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Option<u32>>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The end of a continuation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The request.
    pub id: u64,
    /// The continuation.
    pub index: u32,
    /// Its tokens, those from before it was resumed included.
    pub n_tokens: u32,
    /// Reason.
    pub reason: EndReason,
    /// Names of the blocks that it filled, after those of the prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockKey>,
}

impl End {
    /// The output that ended so.
    pub fn output(&self) -> RecordedOutput {
        let stops = self.reason == EndReason::Stop;
        RecordedOutput { n_tokens: self.n_tokens, stops, blocks: self.blocks.clone() }
    }
}

/// Reason of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The model ended it, or a token at which the request stops.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The client went away or cancelled.
    Abort,
    /// It failed.
    Error,
}

impl From<FinishReason> for EndReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop { .. } => Self::Stop,
            FinishReason::Length => Self::Length,
            FinishReason::Abort => Self::Abort,
            FinishReason::Error => Self::Error,
        }
    }
}

/// The end of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// Executor that ran it.
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: u64,
    /// Whether it gave no result.
    #[serde(skip_serializing_if = "is_default")]
    pub failed: bool,
    /// Time from its planning, or from the end of the step before it, to its result.
    pub duration_ns: u64,
    /// Part of that in the executor.
    pub executing_ns: u64,
    /// Sequences that had a share in it.
    pub n_sequences: u32,
    /// New tokens.
    pub n_tokens: u32,
    /// Positions that its new tokens attended to, summed over tokens.
    pub n_attended: u64,
    /// Sequences for which a token was chosen.
    pub n_sampled: u32,
    /// Sequences that waited meanwhile.
    #[serde(skip_serializing_if = "is_default")]
    pub n_waiting: u32,
}

/// An input with what the recording needs of its effects: small enough to be sent to another thread, which
/// makes lines of it.
#[derive(Debug)]
pub struct Observed {
    at: Timestamp,
    input: ObservedInput,
    tokens: Vec<(SequenceId, TokenId)>,
    ends: Vec<(SequenceId, FinishReason)>,
    closed: Vec<(RequestId, bool)>,
    step: Option<Step>,
}

#[derive(Debug)]
enum ObservedInput {
    Submit {
        request: Request,
        arrived: Timestamp,
    },
    Other(Event),
    /// A step's end, which its record tells, or masks, which are not recorded.
    None,
}

impl Observed {
    /// What an input did to an engine.
    pub fn new(input: &Input, at: Timestamp, effects: &[Effect]) -> Self {
        let mut step = None;
        let input = match input {
            Input::Submit { request, arrived } => {
                ObservedInput::Submit { request: request.clone(), arrived: *arrived }
            }
            Input::Abort(request) => ObservedInput::Other(Event::Abort(request.0)),
            Input::AbortSequence(id) => ObservedInput::Other(Event::AbortSequence(id.request.0, id.index)),
            Input::ReaderBehind { request, n_events } => {
                ObservedInput::Other(Event::ReaderBehind(request.0, *n_events))
            }
            Input::ReaderCaughtUp(request) => ObservedInput::Other(Event::ReaderCaughtUp(request.0)),
            Input::StepDone(done) => {
                let failed = done.result.is_err();
                step = Some(Step { epoch: done.epoch.0, failed, ..Step::default() });
                ObservedInput::None
            }
            Input::ExecutorMade { epoch, .. } => ObservedInput::Other(Event::ExecutorMade(epoch.0)),
            Input::ExecutorNotMade { epoch, .. } => ObservedInput::Other(Event::ExecutorNotMade(epoch.0)),
            Input::Drain { deadline } => ObservedInput::Other(Event::Drain(deadline.map(Timestamp::as_ns))),
            Input::Tick => ObservedInput::Other(Event::Tick),
            Input::MasksEvaluated(_) => ObservedInput::None,
        };
        let mut observed = Self { at, input, tokens: Vec::new(), ends: Vec::new(), closed: Vec::new(), step };
        for effect in effects {
            observed.note(effect);
        }
        observed
    }

    fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Deliver { request, event: StreamEvent::Token { index, report } } => {
                self.tokens.push((SequenceId { request: *request, index: *index }, report.chosen.token));
            }
            Effect::Deliver { request, event: StreamEvent::Finished { index, reason, .. } } => {
                self.ends.push((SequenceId { request: *request, index: *index }, *reason));
            }
            Effect::Close { request, failure, .. } => self.closed.push((*request, failure.is_some())),
            Effect::Refuse { request, .. } => self.closed.push((*request, true)),
            Effect::EndStep { record, .. } => {
                // One that took too long is ended by a tick, not by an input of its own.
                if let Some(step) = &mut self.step {
                    step.duration_ns = record.duration.0;
                    step.executing_ns = record.executing.0;
                    step.n_sequences = record.n_sequences;
                    step.n_tokens = record.n_tokens;
                    step.n_attended = record.n_attended;
                    step.n_sampled = record.n_sampled;
                    step.n_waiting = record.n_waiting;
                }
            }
            _ => {}
        }
    }

    /// Bytes that it holds while it waits to be written.
    pub fn n_bytes(&self) -> usize {
        let prompt = match &self.input {
            ObservedInput::Submit { request, .. } => request.n_queued_tokens() * size_of::<TokenId>(),
            ObservedInput::Other(_) | ObservedInput::None => 0,
        };
        size_of::<Self>() + prompt + size_of_val(self.tokens.as_slice())
    }
}

/// Makes lines of what an engine does.
#[derive(Debug)]
pub struct Recorder {
    salt: [u8; 32],
    max_open: usize,
    tenants: BTreeMap<TenantId, u32>,
    open: BTreeMap<RequestId, Open>,
}

/// A request that has not ended.
#[derive(Debug)]
struct Open {
    root: BlockHash,
    request: Request,
    /// The tokens of each continuation; `None` of one that has ended.
    outputs: Vec<Option<Vec<TokenId>>>,
}

/// Most tenants that have a number of their own; the others share one.
const MAX_TENANTS: usize = 1 << 16;

impl Recorder {
    /// A recorder that names blocks under this salt and follows the outputs of at most `max_open` requests.
    pub fn new(salt: [u8; 32], max_open: usize) -> Self {
        Self { salt, max_open, tenants: BTreeMap::new(), open: BTreeMap::new() }
    }

    /// Adds the lines of an input to `lines`, in the order in which a replay needs them.
    pub fn lines(&mut self, observed: Observed, lines: &mut Vec<Line>) {
        let Observed { at, input, tokens, ends, closed, step } = observed;
        let at_ns = at.as_ns();
        let mut push = |event| lines.push(Line { at_ns, event });
        match input {
            ObservedInput::Submit { request, arrived } => {
                push(Event::Submit(Box::new(self.submit(&request, arrived))));
            }
            ObservedInput::Other(event) => push(event),
            ObservedInput::None => {}
        }
        step.into_iter().for_each(|step| push(Event::Step(step)));
        for (id, token) in tokens {
            if let Some(output) = self.output_mut(id) {
                output.push(token);
            }
        }
        for (id, reason) in ends {
            if let Some(end) = self.end(id, reason.into()) {
                push(Event::End(end));
            }
        }
        for (request, has_failed) in closed {
            let n_outputs = self.open.get(&request).map_or(0, |open| open.outputs.len() as u32);
            for index in 0..n_outputs {
                if let Some(end) = self.end(SequenceId { request, index }, EndReason::Error) {
                    push(Event::End(end));
                }
            }
            self.open.remove(&request);
            if has_failed {
                push(Event::Failed { id: request.0 });
            }
        }
    }

    fn output_mut(&mut self, id: SequenceId) -> Option<&mut Vec<TokenId>> {
        self.open.get_mut(&id.request)?.outputs.get_mut(id.index as usize)?.as_mut()
    }

    fn submit(&mut self, request: &Request, arrived: Timestamp) -> Submit {
        let (tenant, tenant_after) = self.tenant(&request.tenant);
        let root = self.root(request);
        let outputs = (0..request.n).map(|index| request.output_so_far(index).map(<[TokenId]>::to_vec));
        if self.open.len() < self.max_open {
            let open = Open { root, request: request.clone(), outputs: outputs.collect() };
            self.open.insert(request.id, open);
        }
        let lengths = request.outputs_so_far.iter();
        Submit {
            id: request.id.0,
            arrived_ns: arrived.as_ns(),
            tenant,
            tenant_after,
            priority: request.priority.0,
            adapter: request.adapter.map(|adapter| adapter.id.0),
            n: request.n,
            prompt_tokens: request.prompt.len() as u32,
            prompt_blocks: BlockHash::keys_of(root, &request.prompt, request.media.as_deref()),
            max_tokens: request.sampling.max_tokens,
            min_tokens: request.sampling.min_tokens,
            prompt_logprobs: request.sampling.prompt_logprobs.is_some(),
            reads_history: request.sampling.reads_history(),
            is_special: request.constraint.is_some() || request.sampling.beams.is_some(),
            resumed: lengths.map(|output| output.as_ref().map(|output| output.len() as u32)).collect(),
        }
    }

    /// Number of a tenant, and of a new one the number of the tenant before it.
    fn tenant(&mut self, name: &TenantId) -> (u32, Option<u32>) {
        if let Some(number) = self.tenants.get(name) {
            return (*number, None);
        }
        let number = self.tenants.len() as u32;
        let before = self.tenants.range(..name).next_back().map(|(_, number)| *number);
        if self.tenants.len() < MAX_TENANTS {
            self.tenants.insert(name.clone(), number);
        }
        (number, before)
    }

    /// The root of a request's block names under the salt.
    fn root(&self, request: &Request) -> BlockHash {
        let adapter = request.adapter.map(|adapter| adapter.digest);
        let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter);
        let mut hasher = Sha256::new_with_prefix(self.salt);
        hasher.update(root.as_bytes());
        BlockHash::from_bytes(hasher.finalize().into())
    }

    fn end(&mut self, id: SequenceId, reason: EndReason) -> Option<End> {
        let open = self.open.get_mut(&id.request)?;
        let output = open.outputs.get_mut(id.index as usize)?.take()?;
        let n_prompt_blocks = open.request.prompt.len() / BLOCK_TOKENS;
        let tokens = [&open.request.prompt[..], &output[..]].concat();
        let names = BlockHash::keys_of(open.root, &tokens, open.request.media.as_deref());
        Some(End {
            id: id.request.0,
            index: id.index,
            n_tokens: output.len() as u32,
            reason,
            blocks: names[n_prompt_blocks..].to_vec(),
        })
    }
}

impl Line {
    /// Time of the line.
    pub fn at(&self) -> Timestamp {
        Timestamp::default() + Nanos(self.at_ns)
    }
}
