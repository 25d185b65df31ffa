//! Work on the features of pictures in a step: in parts, so that a large picture lengthens no step more than
//! the chunk of a prompt does. Does not know encoders.

use super::Scheduler;
use super::budget::StepBudget;
use crate::scheduling::batch::{ScheduledBatch, ScheduledEncoding, StepOutput};
use crate::scheduling::sequence::{Running, Sequence};

/// Maximum number of pictures that a step works on: bounds those that are begun and not done.
const MAX_ENCODINGS: usize = 4;

/// Weight of the newest step in the mean duration of a part.
const NEWEST_WEIGHT: f64 = 0.3;

/// Mean duration of a part of the work on pictures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EncodingTime {
    part_ms: Option<f64>,
}

impl EncodingTime {
    /// Updates the mean with a step's parts.
    fn observe(&mut self, output: &StepOutput) {
        if output.media.n_parts == 0 {
            return;
        }
        let newest = output.media.took.as_ms_f64() / f64::from(output.media.n_parts);
        self.part_ms = Some(self.part_ms.map_or(newest, |old| old + NEWEST_WEIGHT * (newest - old)));
    }

    /// Mean duration in ms; `None` before the first observation.
    pub(super) fn part_ms(&self) -> Option<f64> {
        self.part_ms
    }
}

impl Scheduler {
    /// Number of the `n` next tokens of sequence `i` that the step may compute: those before the first
    /// picture without features. If there are none, the step gets work on that picture: half of its rest if
    /// `others` need it too.
    pub(super) fn encode_before(
        &mut self,
        i: usize,
        n: usize,
        others: bool,
        budget: &mut StepBudget,
    ) -> usize {
        let sequence = &mut self.running[i];
        if sequence.encodes() || n == 0 {
            return 0;
        }
        let start = sequence.n_planned();
        let Some(needed) = sequence.needed_encoding(start, start + n) else { return n };
        if needed.start > start {
            return needed.start - start;
        }
        let n_parts = match budget.n_encodings < MAX_ENCODINGS {
            true => budget.parts(&self.step_time, self.encoding_time.part_ms(), needed.n_left, others),
            false => 0,
        };
        if n_parts > 0 {
            sequence.schedule_encoding(n_parts);
            budget.take_parts(n_parts, self.encoding_time.part_ms());
        }
        if n_parts < needed.n_left || budget.target_ms.is_some() {
            return 0;
        }
        // Where no output tokens wait for the step, it computes the picture's tokens too.
        let n = sequence.needed_after(needed, start + n) - start;
        if n <= budget.tokens_left { n } else { 0 }
    }

    /// Number of the tokens `start..start + n` of sequence `i` before the first picture whose features are
    /// not ready.
    pub(super) fn n_encoded(&mut self, i: usize, start: usize, n: usize) -> usize {
        let needed = self.running[i].needed_encoding(start, start + n);
        needed.map_or(n, |needed| needed.start.saturating_sub(start))
    }

    /// Notes the pictures of a step whose features are ready, and the duration of the work.
    pub(super) fn note_encodings(&mut self, batch: &ScheduledBatch, output: &StepOutput) {
        self.encoding_time.observe(output);
        let done = batch.encodings().iter().enumerate().filter(|(idx, _)| output.media.is_done(*idx));
        for (_, encoding) in done {
            let sequence = self.running.iter_mut().find(|sequence| sequence.id() == encoding.id);
            sequence.into_iter().for_each(|sequence| sequence.note_encoded(encoding.span_idx));
        }
    }
}

/// Adds the sequences' work on pictures to the planned step's batch.
pub(super) fn push_encodings(running: &mut [Sequence<Running>], batch: &mut ScheduledBatch) {
    for sequence in running {
        let Some(asked) = sequence.take_encoding() else { continue };
        let Some(media) = sequence.request.media.clone() else { continue };
        batch.push_encoding(ScheduledEncoding {
            id: sequence.id(),
            media,
            media_scope: Some(sequence.root()),
            span_idx: asked.span_idx,
            n_before: asked.n_before,
            share: asked.share,
        });
    }
}
