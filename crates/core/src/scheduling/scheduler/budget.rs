//! Remaining tokens and time of a step while it is planned. Does not know sequences.

use super::step_time::{StepShape, StepTimeModel};

/// Minimum number of tokens of a step's first chunk, however slow the machine, so that prompts make
/// progress.
const MIN_CHUNK_TOKENS: usize = 16;

/// Maximum number of tokens of a chunk beside other sequences' output tokens before the first step was
/// timed.
const UNTIMED_CHUNK_TOKENS: usize = 64;

/// Rest of a step while it is planned.
pub(super) struct StepBudget {
    pub(super) tokens_left: usize,
    pub(super) shape: StepShape,
    /// Target duration that limits chunks; `None` if no sequence is decoding.
    pub(super) target_ms: Option<f64>,
    pub(super) n_chunks: usize,
}

impl StepBudget {
    pub(super) fn new(n_tokens: usize) -> Self {
        Self { tokens_left: n_tokens, shape: StepShape::default(), target_ms: None, n_chunks: 0 }
    }

    pub(super) fn take(&mut self, start: usize, n: usize) {
        self.tokens_left -= n;
        self.shape = self.shape.plus(StepShape::of_sequence(start, n));
    }

    pub(super) fn give_back(&mut self, start: usize, n: usize) {
        self.tokens_left += n;
        self.shape = self.shape.minus(StepShape::of_sequence(start, n));
    }

    /// Number of tokens from `start` on that fit into the rest of the step and of its time.
    pub(super) fn tokens_in_time(&self, model: &StepTimeModel, start: usize) -> usize {
        let within = |target_ms| model.most_tokens(self.shape, start, self.tokens_left, target_ms);
        self.target_ms.and_then(within).unwrap_or(self.tokens_left)
    }

    /// All of the `wanted` tokens if they fit into the step, otherwise 0.
    pub(super) fn whole(&self, wanted: usize) -> usize {
        if wanted <= self.tokens_left { wanted } else { 0 }
    }

    /// Number of the `wanted` tokens from `start` on that may join the step. If `others` want chunks too,
    /// at most half of the rest, so that a short prompt passes a long one.
    pub(super) fn chunk(&self, model: &StepTimeModel, start: usize, wanted: usize, others: bool) -> usize {
        let most = wanted.min(self.tokens_left);
        let at_least =
            if self.n_chunks == 0 || self.shape.n_tokens == 0 { MIN_CHUNK_TOKENS.min(most) } else { 0 };
        let in_time = match self.target_ms {
            None => self.tokens_left,
            Some(target_ms) => model
                .most_tokens(self.shape, start, self.tokens_left, target_ms)
                .unwrap_or(UNTIMED_CHUNK_TOKENS)
                .max(at_least),
        };
        let share = if others { (in_time / 2).max(MIN_CHUNK_TOKENS.min(in_time)) } else { in_time };
        most.min(share)
    }
}
