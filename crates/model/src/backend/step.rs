//! Sizes and tickets of steps, for devices. Does not know scheduling.

use crate::batch_input::BatchInput;
use crate::shapes::StepShape;

impl StepShape {
    /// The shape of a step with this input.
    pub fn of(input: &BatchInput) -> Self {
        let starts = input.spans.iter().map(|span| span.first_block);
        let ends = starts.clone().skip(1).chain([input.blocks.len()]);
        let n_blocks = starts.zip(ends).map(|(start, end)| end - start).max().unwrap_or(0);
        let padded = |n: usize| if n == 0 { 0 } else { n.next_power_of_two() };
        Self {
            n_tokens: padded(input.n_tokens()),
            n_sequences: padded(input.spans.len()),
            n_logits: padded(input.logit_tokens.len()),
            n_blocks: padded(n_blocks),
        }
    }
}

/// A step that was submitted; backends number them as they like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_input::QuerySpan;

    #[test]
    fn steps_of_nearly_equal_sizes_have_one_shape() {
        let step = |n_sequences: usize, n_blocks: usize| {
            let span = |i| QuerySpan { first_row: i, n_rows: 1, start: 0, first_block: i * n_blocks };
            StepShape::of(&BatchInput {
                tokens: vec![0; n_sequences],
                spans: (0..n_sequences).map(span).collect(),
                blocks: vec![0; n_sequences * n_blocks],
                logit_tokens: (0..n_sequences as u32).collect(),
                ..Default::default()
            })
        };
        assert_eq!(step(5, 3), StepShape { n_tokens: 8, n_sequences: 8, n_logits: 8, n_blocks: 4 });
        assert_eq!(step(5, 3), step(8, 4));
        assert_ne!(step(8, 4), step(9, 4));
        assert_ne!(step(8, 4), step(8, 5));
        assert_eq!(step(0, 0), StepShape::default());
    }
}
