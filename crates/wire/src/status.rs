//! How a worker is at present: whether it answers, how busy it is, whether it would refuse any request. Does not know how this
//! is shown and who decides by it.

use serde::{Deserialize, Serialize};

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
    pub total_blocks: u64,
    pub used_blocks: u64,
    pub totals: Totals,
    pub step_tokens: StepTokens,
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
