//! How long a step takes, asked by the simulated executors.

use std::fmt::Debug;
use std::time::Duration;

/// The properties of one step that its duration depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences in the batch.
    pub n_sequences: u32,
    /// Tokens that go through the layers.
    pub n_tokens: u32,
    /// Prompt tokens among them.
    pub n_prompt_tokens: u32,
    /// Tokens whose logits are computed.
    pub n_logits: u32,
    /// Sum of the context lengths of the sequences, in tokens: keys and values that are read once.
    pub n_context_tokens: u64,
    /// Sum over all tokens of the positions that each attends to.
    pub n_attention_pairs: u64,
}

/// Predicts the duration of steps.
pub trait CostModel: Debug + Send + Sync {
    /// Duration of a step from its submission to its tokens.
    fn step_time(&self, step: &StepShape) -> Duration;
}
