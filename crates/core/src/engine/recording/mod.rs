//! A recording of an engine or a gateway, line by line: arrivals, lengths, the names of blocks under a secret
//! salt, limits of sampling, ends, durations of steps; never text and never token ids. Does not know files.
//!
//! An engine's recording that is complete from its start yields the same batches when its inputs are applied
//! again to an [`EngineCore`](super::EngineCore), unless the batches depend on the content of requests:
//! drafts found in the text, constraints and beam searches are not recorded.

mod recorder;

use serde::{Deserialize, Serialize};

pub use recorder::{LoadObserver, Observed, Recorder};

use super::config::{DEFAULT_EXECUTOR_TIMEOUT_MS, EngineConfig};
use super::recorded_request::{RecordedOutput, RecordedRequest};
use crate::request::{FinishReason, Priority};
use crate::scheduling::block_hash::BlockKey;
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
    /// [`EngineConfig::executor_timeout_ms`].
    #[serde(default = "default_executor_timeout_ms")]
    pub executor_timeout_ms: u64,
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

fn default_executor_timeout_ms() -> u64 {
    DEFAULT_EXECUTOR_TIMEOUT_MS
}

impl RecordedEngine {
    /// The settings of an engine.
    pub fn new(config: &EngineConfig, capacity: ExecutorCapacity) -> Self {
        Self {
            capacity,
            scheduler: config.scheduler.clone(),
            step_timeout_ms: config.step_timeout_ms,
            executor_timeout_ms: config.executor_timeout_ms,
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
            executor_timeout_ms: self.executor_timeout_ms,
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
    /// The event at this time.
    #[serde(rename = "e")]
    pub event: Event,
}

impl Line {
    /// Time of the line.
    pub fn at(&self) -> Timestamp {
        Timestamp::default() + Nanos(self.at_ns)
    }
}

/// Events of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request arrived.
    Submit(Box<Submit>),
    /// A continuation ended.
    End(End),
    /// A request ended without an end of its continuations, or was refused.
    Failed {
        /// Number of the request.
        id: u64,
    },
    /// The reader of a request disconnected.
    Abort(u64),
    /// A continuation needed no more tokens.
    AbortSequence(u64, u32),
    /// The reader of a request was behind by that many events.
    ReaderBehind(u64, usize),
    /// The reader of a request had caught up.
    ReaderCaughtUp(u64),
    /// A step ended.
    Step(Step),
    /// An executor was created.
    ExecutorMade(u64),
    /// An executor could not be created.
    ExecutorNotMade(u64),
    /// The engine must finish, at the latest at this time.
    Drain(Option<u64>),
    /// Deadlines were checked and steps planned.
    Tick,
    /// Number of inputs that are missing from the recording, since they could not be written in time.
    Lost(u64),
}

/// A request without its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Submit {
    /// Number of the request.
    pub id: u64,
    /// Nanoseconds since the origin when it was handed in.
    pub arrived_ns: u64,
    /// Number of the tenant, in order of the tenants' first requests.
    pub tenant: u32,
    /// Tenant directly before a tenant's first request, in the order of names, which breaks ties between
    /// tenants; `None`: it is the first.
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
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Names of the full blocks of its prompt, under the salt of the recording.
    pub prompt_blocks: Vec<BlockKey>,
    /// Maximum number of tokens of an output.
    pub max_tokens: u32,
    /// Fewest tokens of an output.
    #[serde(skip_serializing_if = "is_default")]
    pub min_tokens: u32,
    /// Whether the log-probabilities of the prompt are requested, so that the cache is not used.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_logprobs: bool,
    /// Whether the choice of its tokens depends on earlier tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub reads_history: bool,
    /// Whether it has a constraint or a beam search, which a replay leaves out.
    #[serde(skip_serializing_if = "is_default")]
    pub is_special: bool,
    /// Output tokens so far of each continuation of a resumed request; `None` for an ended one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Option<u32>>,
}

impl Submit {
    /// The request of the recording, with these outputs.
    pub fn request(&self, outputs: Vec<RecordedOutput>) -> RecordedRequest {
        RecordedRequest {
            id: self.id,
            tenant: self.tenant,
            priority: Priority(self.priority),
            adapter: self.adapter,
            prompt_tokens: self.prompt_tokens,
            prompt_blocks: self.prompt_blocks.clone(),
            max_tokens: self.max_tokens,
            outputs,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The end of a continuation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Number of the request.
    pub id: u64,
    /// Index of the continuation.
    pub index: u32,
    /// Number of tokens, those before a resumption included.
    pub n_tokens: u32,
    /// Reason of the end.
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
    /// The client disconnected or cancelled.
    Abort,
    /// The request or its step failed.
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
    /// Epoch of the executor that ran the step.
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: u64,
    /// Whether it gave no result.
    #[serde(skip_serializing_if = "is_default")]
    pub failed: bool,
    /// Time from its planning, or from the end of the step before it, to its result.
    pub duration_ns: u64,
    /// Part of that time in the executor.
    pub executing_ns: u64,
    /// Number of sequences that had a share in it.
    pub n_sequences: u32,
    /// Number of new tokens in the step.
    pub n_tokens: u32,
    /// Positions that its new tokens attended to, summed over tokens.
    pub n_attended: u64,
    /// Number of sequences for which a token was chosen.
    pub n_sampled: u32,
    /// Number of sequences that waited meanwhile.
    #[serde(skip_serializing_if = "is_default")]
    pub n_waiting: u32,
}
