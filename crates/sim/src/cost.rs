//! Durations of steps for the simulated executors.

use std::fmt::Debug;
use std::time::Duration;

/// The properties of one step that its duration depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Number of sequences in the batch.
    pub n_sequences: u32,
    /// Number of tokens that go through the layers.
    pub n_tokens: u32,
    /// Number of prompt tokens among them.
    pub n_prompt_tokens: u32,
    /// Number of tokens whose logits are computed.
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

    /// Durations of equal steps in parts of [`Self::step_time`], at evenly spaced quantiles; empty where
    /// equal steps take equal time.
    fn spread(&self) -> &[f64] {
        &[]
    }
}

/// Time of a step as a sum of parts, each in proportion to a property of the step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinearCostModel {
    /// Time of an empty step.
    pub fixed: Duration,
    /// Time added by each token that passes the layers.
    pub per_token: Duration,
    /// Time added by each sequence.
    pub per_sequence: Duration,
    /// Nanoseconds added by each token of context, which may be less than one.
    pub per_context_token_ns: f64,
}

impl CostModel for LinearCostModel {
    fn step_time(&self, step: &StepShape) -> Duration {
        let context = Duration::from_nanos((self.per_context_token_ns * step.n_context_tokens as f64) as u64);
        self.fixed + self.per_token * step.n_tokens + self.per_sequence * step.n_sequences + context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let model = LinearCostModel {
            fixed: Duration::from_micros(100),
            per_token: Duration::from_micros(10),
            per_sequence: Duration::from_micros(1),
            per_context_token_ns: 0.5,
        };
        let step = StepShape { n_sequences: 3, n_tokens: 5, n_context_tokens: 4000, ..StepShape::default() };
        assert_eq!(model.step_time(&step), Duration::from_micros(155));
    }
}
