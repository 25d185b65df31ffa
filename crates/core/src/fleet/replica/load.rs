//! Load and status of a replica, as plain numbers.

use serde::{Deserialize, Serialize};

use crate::fleet::routing::LoadReport;
use crate::scheduling::{ServiceRate, StepTime};

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
        }
    }

    /// Sequences that run or wait.
    pub fn n_sequences(&self) -> usize {
        self.n_running + self.n_waiting
    }
}

/// Totals of a replica since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Steps that ended.
    pub steps: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Prompt tokens looked for in the prefix cache.
    pub cache_query_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cache_hit_tokens: u64,
    /// Sequences that lost their blocks and waited again.
    pub preemptions: u64,
    /// Number of times that drafts of a sequence were computed.
    pub drafts: u64,
    /// Drafts that were computed.
    pub draft_tokens: u64,
    /// Drafts that became output tokens.
    pub accepted_draft_tokens: u64,
    /// Pictures that were encoded.
    #[serde(skip_serializing_if = "is_zero")]
    pub encoded_media: u64,
    /// Pictures whose features were known when a prompt reached them.
    #[serde(skip_serializing_if = "is_zero")]
    pub known_media: u64,
    /// Blocks of keys and values that were brought back from disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub restored_blocks: u64,
    /// Blocks that were written to disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub stored_blocks: u64,
    /// Blocks that could not be written to disk, or not be read from it.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_block_transfers: u64,
    /// Requests that ended with a failure.
    pub failed_requests: u64,
    /// Executors made after the first one.
    pub executor_restarts: u64,
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
    /// New tokens of all steps.
    pub sum: u64,
}

/// Whether a replica answers. The smallest value is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Runs requests.
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
