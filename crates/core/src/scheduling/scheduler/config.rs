//! Settings of scheduling. Does not know files and flags.

use serde::{Deserialize, Serialize};

use crate::scheduling::block_pool::EvictionPolicy;
use crate::scheduling::executor::ExecutorCapacity;

/// Settings of planning, and bounds on waiting requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// Maximum number of new tokens in one step, at least 1; the executor's own limit holds too.
    pub max_batch_tokens: u32,
    /// Maximum number of running sequences, at least 1; the executor's own limit holds too.
    pub max_batch_sequences: u32,
    /// Target in ms for the duration of steps while sequences decode: chunks of prompts are cut to meet it.
    /// On a machine too slow for that, chunks make a step at most half as long again as it would be without
    /// them.
    pub inter_token_target_ms: u32,
    /// Maximum number of requests that wait for their first step.
    pub max_queued_requests: u32,
    /// Maximum number of prompt tokens of the requests that wait for their first step.
    pub max_queued_tokens: u64,
    /// Maximum number of drafts of one sequence in one step; 0 for none. Drafts use the tokens and time
    /// that a step has left when all sequences have their tokens.
    pub max_draft_tokens: u32,
    /// Source of drafts when the executor proposes none.
    pub speculation: SpeculationMethod,
    /// Minimum number of tokens at the end of a sequence that must have occurred in it before, for prompt
    /// lookup to propose the tokens after them. At least 1.
    pub prompt_lookup_min: u32,
    /// Whether requests of a tenant share the blocks of common prefixes. Continuations of one request
    /// always do.
    pub prefix_caching: bool,
    /// Policy that chooses which cached blocks are evicted.
    pub eviction: EvictionPolicy,
    /// Share of the blocks, in percent, up to which blocks that clients ask to keep stay ahead of others;
    /// with more, the tenant with the most loses its own first. 0: such requests have no effect.
    pub max_marked_percent: u32,
    /// Order of waiting requests.
    pub policy: SchedulingPolicy,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_batch_sequences: 128,
            inter_token_target_ms: 120,
            max_queued_requests: 1024,
            max_queued_tokens: 4_000_000,
            max_draft_tokens: 16,
            speculation: SpeculationMethod::PromptLookup,
            prompt_lookup_min: 3,
            prefix_caching: true,
            eviction: EvictionPolicy::default(),
            max_marked_percent: 50,
            policy: SchedulingPolicy::Priority,
        }
    }
}

impl SchedulerConfig {
    /// Reduces the settings to the executor's capacity.
    pub(super) fn within(self, capacity: &ExecutorCapacity) -> Self {
        let max_batch_tokens = self.max_batch_tokens.min(capacity.max_batch_tokens).max(1);
        // No more run than can each have a token a step: the others would only hold blocks.
        let most_sequences = capacity.max_batch_sequences.clamp(1, max_batch_tokens);
        let (most_sequences, max_draft_tokens) = match capacity.n_state_slots {
            0 => (most_sequences, self.max_draft_tokens),
            // A rejected draft would have changed the state.
            n_state_slots => (most_sequences.min(n_state_slots), 0),
        };
        let max_batch_sequences = self.max_batch_sequences.clamp(1, most_sequences);
        Self { max_batch_tokens, max_batch_sequences, max_draft_tokens, ..self }
    }
}

/// Source of drafts when the executor proposed none. It does not change the outcome of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeculationMethod {
    /// Speculation is off.
    None,
    /// The sequence itself: the tokens after an earlier occurrence of its end, while that is expected to
    /// pay.
    #[default]
    PromptLookup,
    /// The executor's draft model, for the number of drafts that is expected to pay.
    DraftModel,
    /// Both: each sequence uses the source that was right more often lately.
    DraftModelAndPromptLookup,
}

impl SpeculationMethod {
    /// Whether drafts are looked up in the sequence.
    pub fn looks_up(self) -> bool {
        matches!(self, Self::PromptLookup | Self::DraftModelAndPromptLookup)
    }

    /// Whether the executor's draft model makes drafts.
    pub fn asks_draft_model(self) -> bool {
        matches!(self, Self::DraftModel | Self::DraftModelAndPromptLookup)
    }
}

/// Order of waiting requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// First come, first served: priorities are ignored.
    Fcfs,
    /// Among the requests of one tenant, smaller priorities go first.
    #[default]
    Priority,
}
