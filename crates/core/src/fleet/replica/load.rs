//! Load and status of a replica, as plain numbers.

use serde::{Deserialize, Serialize};

use crate::fleet::routing::{ExchangeReport, LoadReport};
use crate::scheduling::{ServiceRate, StepTime};
use crate::time::Nanos;

/// Load of a replica, and its totals since it started. A snapshot that may be some steps old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Number of running sequences.
    pub n_running: usize,
    /// Number of sequences that wait to run, requests that wait for their first step included.
    pub n_waiting: usize,
    /// Number of sequences that are paused because their readers are behind.
    pub n_paused: usize,
    /// Number of prompt tokens that are not computed yet.
    pub n_queued_tokens: u64,
    /// Measured speed; `None` before the first step.
    pub machine: Option<ServiceRate>,
    /// Number of KV blocks.
    pub total_blocks: usize,
    /// Number of KV blocks that sequences hold.
    pub used_blocks: usize,
    /// Number of KV blocks that no sequence holds and whose content can be found.
    #[serde(skip_serializing_if = "is_none")]
    pub cached_blocks: usize,
    /// Number of those that a client asked to keep.
    #[serde(skip_serializing_if = "is_none")]
    pub marked_blocks: usize,
    /// Totals since it started.
    pub totals: Totals,
    /// New tokens of each step.
    pub step_tokens: StepTokens,
}

impl Load {
    /// The load in the form that routers read.
    pub fn report(&self) -> LoadReport {
        LoadReport {
            n_queued_tokens: self.n_queued_tokens,
            n_decoding: u32::try_from(self.n_running).unwrap_or(u32::MAX),
            step_time: self.machine.map_or_else(StepTime::default, |machine| machine.step_time),
            exchange: ExchangeReport {
                block_bytes: self.totals.block_bytes,
                state_blocks: self.totals.state_blocks,
                n_pulled: self.totals.pulled_blocks,
                block_time: Nanos(self.totals.block_pull_ns),
            },
        }
    }

    /// Number of sequences that run or wait.
    pub fn n_sequences(&self) -> usize {
        self.n_running + self.n_waiting
    }
}

/// Totals of a replica since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of steps that ended.
    pub steps: u64,
    /// Number of computed prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Number of prompt tokens looked up in the prefix cache.
    pub cache_query_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cache_hit_tokens: u64,
    /// Prompt tokens found in the cache that came back from disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub restored_hit_tokens: u64,
    /// Cached blocks whose content was dropped.
    #[serde(skip_serializing_if = "Evictions::is_none")]
    pub evictions: Evictions,
    /// Sequences that lost their blocks and waited again.
    pub preemptions: u64,
    /// Number of times that drafts of a sequence were computed.
    pub drafts: u64,
    /// Number of drafts that were computed.
    pub draft_tokens: u64,
    /// Number of drafts that became output tokens.
    pub accepted_draft_tokens: u64,
    /// Number of pictures that were encoded.
    #[serde(skip_serializing_if = "is_zero")]
    pub encoded_media: u64,
    /// Number of pictures whose features were cached when a prompt reached them.
    #[serde(skip_serializing_if = "is_zero")]
    pub known_media: u64,
    /// Number of blocks of keys and values that were brought back from disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub restored_blocks: u64,
    /// Number of blocks that were written to disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub stored_blocks: u64,
    /// Blocks that could not be written to disk, or not be read from it.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_block_transfers: u64,
    /// Blocks that came from other workers.
    #[serde(skip_serializing_if = "is_zero")]
    pub pulled_blocks: u64,
    /// Blocks that other workers were asked for and that did not come.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_pulls: u64,
    /// Blocks that were given to other workers.
    #[serde(skip_serializing_if = "is_zero")]
    pub served_blocks: u64,
    /// Bytes of a block, where blocks are exchanged.
    #[serde(skip_serializing_if = "is_zero")]
    pub block_bytes: u64,
    /// Number of blocks whose bytes a recurrent state has, where states are exchanged.
    #[serde(skip_serializing_if = "is_zero")]
    pub state_blocks: u64,
    /// Nanoseconds in which a block comes from another worker, as measured last; 0 before the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub block_pull_ns: u64,
    /// Requests that ended with a failure.
    pub failed_requests: u64,
    /// Number of executors made after the first one.
    pub executor_restarts: u64,
}

/// Cached blocks whose content was dropped for another one, by their marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evictions {
    /// Blocks that no client asked to keep.
    pub unmarked: u64,
    /// Blocks that were kept for as long as a client asked.
    pub expired: u64,
    /// Marked blocks of the tenant with the most, while there were more than may be marked.
    pub over_share: u64,
    /// Marked blocks, because nothing else was left.
    pub marked: u64,
}

impl Evictions {
    /// Whether nothing was dropped.
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether a number of blocks is left out.
fn is_none(n_blocks: &usize) -> bool {
    *n_blocks == 0
}

/// Whether a total that some models do not have is left out.
fn is_zero(total: &u64) -> bool {
    *total == 0
}

/// A histogram of new tokens a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTokens {
    /// Upper bounds of all buckets but the last.
    pub bounds: [u64; 15],
    /// Steps of each bucket; the last has those above all bounds.
    pub counts: [u64; 16],
    /// Number of new tokens of all steps.
    pub sum: u64,
}

/// Whether a replica answers. The smallest value is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The replica runs requests.
    Ready = 0,
    /// Will not run requests again without a restart.
    Lost = 2,
    /// Makes no progress at present, but may again; also a status that a newer build reports.
    #[serde(other)]
    Stalled = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_may_answer_again_is_better_than_a_lost_one() {
        assert!(Status::Ready < Status::Stalled && Status::Stalled < Status::Lost);
    }
}
