//! How a worker is at present: whether it answers, how busy it is, whether it would refuse any request. Does not know how this
//! is shown and who decides by it.

use serde::{Deserialize, Serialize};
use throng_core::block_hash::BlockKey;
use throng_core::block_pool::CacheNews;
use throng_core::routing::StepTime;
use throng_core::time::Nanos;

use crate::WireError;

/// How a worker is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether it answers.
    pub health: Health,
    /// How busy it is.
    #[serde(default)]
    pub load: Load,
    /// Why it would refuse any request now, however short.
    #[serde(default)]
    pub refuses: Option<WireError>,
    /// What changed in its prefix cache since the line before, in lines of [`WATCH`](crate::WATCH) only. Workers that never say anything
    /// here do not tell what they have cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheChanges>,
}

/// Most names of blocks in one line; a worker with more cached blocks does not name the rest.
pub const MAX_CACHE_NAMES: usize = 1 << 16;

/// Which blocks of prompts are found in a worker's prefix cache: the first eight bytes of their names, little-endian.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheChanges {
    /// What was said before is void: `stored` is all there is. True in the first line.
    pub is_snapshot: bool,
    /// Blocks that can be found.
    pub stored: Vec<u64>,
    /// Blocks that cannot be found any more.
    pub removed: Vec<u64>,
}

impl From<CacheNews> for CacheChanges {
    fn from(news: CacheNews) -> Self {
        let numbers =
            |names: Vec<BlockKey>| names.into_iter().take(MAX_CACHE_NAMES).map(|name| name.0).collect();
        Self { is_snapshot: news.is_snapshot, stored: numbers(news.stored), removed: numbers(news.removed) }
    }
}

impl From<CacheChanges> for CacheNews {
    fn from(changes: CacheChanges) -> Self {
        let names = |numbers: Vec<u64>| numbers.into_iter().map(BlockKey).collect();
        Self {
            is_snapshot: changes.is_snapshot,
            stored: names(changes.stored),
            removed: names(changes.removed),
        }
    }
}

/// Whether it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It runs requests.
    Ready,
    /// It will not run requests again without a restart.
    Lost,
    /// It makes no progress at present; also what a newer worker means.
    #[serde(other)]
    Stalled,
}

/// How busy it is, and what it has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the gateway's loads")]
pub struct Load {
    pub n_running: u64,
    pub n_waiting: u64,
    pub n_paused: u64,
    pub n_queued_tokens: u64,
    pub machine: Option<Machine>,
    pub total_blocks: u64,
    pub used_blocks: u64,
    pub totals: Totals,
    pub step_tokens: StepTokens,
}

/// How fast it computes: times of a step in nanoseconds, and the most sequences that run at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of `throng_core::overload::Machine`")]
pub struct Machine {
    pub fixed_ns: u64,
    pub per_prompt_token_ns: u64,
    pub per_sequence_ns: u64,
    pub max_step_tokens: u32,
    pub n_slots: u32,
}

impl From<throng_core::overload::Machine> for Machine {
    fn from(machine: throng_core::overload::Machine) -> Self {
        let step_time = machine.step_time;
        Self {
            fixed_ns: step_time.fixed.0,
            per_prompt_token_ns: step_time.per_prompt_token.0,
            per_sequence_ns: step_time.per_sequence.0,
            max_step_tokens: step_time.max_step_tokens,
            n_slots: machine.n_slots,
        }
    }
}

impl From<Machine> for throng_core::overload::Machine {
    fn from(machine: Machine) -> Self {
        let step_time = StepTime {
            fixed: Nanos(machine.fixed_ns),
            per_prompt_token: Nanos(machine.per_prompt_token_ns),
            per_sequence: Nanos(machine.per_sequence_ns),
            max_step_tokens: machine.max_step_tokens,
        };
        Self { step_time, n_slots: machine.n_slots, n_replicas: 1 }
    }
}

/// What it has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the gateway's loads")]
pub struct Totals {
    pub steps: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub cache_query_tokens: u64,
    pub cache_hit_tokens: u64,
    pub preemptions: u64,
    pub drafts: u64,
    pub draft_tokens: u64,
    pub accepted_draft_tokens: u64,
    pub failed_requests: u64,
    pub executor_restarts: u64,
}

/// A histogram of new tokens a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the gateway's loads")]
pub struct StepTokens {
    pub bounds: [u64; 15],
    pub counts: [u64; 16],
    pub sum: u64,
}
