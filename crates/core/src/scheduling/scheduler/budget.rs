//! Remaining tokens and time of a step while it is planned. Does not know sequences.

use super::step_time::{StepShape, StepTimeModel};

/// Minimum number of tokens of a step's first chunk, on machines of any speed, so that prompts make progress.
const MIN_CHUNK_TOKENS: usize = 16;

/// Minimum number of parts of the work on a picture, where no other chunk is in the step.
const MIN_PARTS: usize = 4;

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
    /// Number of pictures that the step works on.
    pub(super) n_encodings: usize,
}

impl StepBudget {
    pub(super) fn new(n_tokens: usize) -> Self {
        Self {
            tokens_left: n_tokens,
            shape: StepShape::default(),
            target_ms: None,
            n_chunks: 0,
            n_encodings: 0,
        }
    }

    /// Whether the step computes anything.
    pub(super) fn has_work(&self) -> bool {
        self.shape.n_tokens > 0 || self.n_encodings > 0
    }

    /// Number of the `n_left` parts of the work on a picture that fit into the rest of the step and of its
    /// time; at most half of the rest if `others` need it too. A part takes `part_ms`, if that is known.
    pub(super) fn parts(
        &self,
        model: &StepTimeModel,
        part_ms: Option<f64>,
        n_left: u32,
        others: bool,
    ) -> u32 {
        let most = (n_left as usize).min(self.tokens_left);
        let at_least = if self.n_chunks == 0 { MIN_PARTS } else { 0 };
        let in_time = match (self.target_ms, part_ms) {
            (None, _) => self.tokens_left,
            (Some(_), None) => at_least,
            (Some(target_ms), Some(part_ms)) => {
                let left_ms = target_ms - model.predict_ms(self.shape).unwrap_or(0.0);
                (left_ms / part_ms.max(1e-6)).max(at_least as f64) as usize
            }
        };
        let share = if others { (in_time / 2).max(MIN_PARTS.min(in_time)) } else { in_time };
        most.min(share) as u32
    }

    /// Takes the room and the time of parts of the work on a picture.
    pub(super) fn take_parts(&mut self, n_parts: u32, part_ms: Option<f64>) {
        self.tokens_left -= n_parts as usize;
        self.n_encodings += 1;
        self.n_chunks += 1;
        let took_ms = f64::from(n_parts) * part_ms.unwrap_or(0.0);
        self.target_ms = self.target_ms.map(|target_ms| target_ms - took_ms);
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

    /// All `wanted` tokens if they fit into the step, otherwise 0.
    pub(super) fn whole(&self, wanted: usize) -> usize {
        if wanted <= self.tokens_left { wanted } else { 0 }
    }

    /// Number of the `wanted` tokens from `start` on that may join the step. If `others` need chunks too, at
    /// most half of the rest, so that a short prompt passes a long one.
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
