//! One step's input in the flat form that a device takes: ids, positions, block tables. Does not know
//! sampling and whose sequences these are.

use std::sync::Arc;

use throng_core::scheduling::batch::{BLOCK_TOKENS, ScheduledBatch, ScheduledSequence, StateShare};

use crate::features::Features;
pub use crate::shapes::{QuerySpan, StateSpan};

/// One step's input. Buffers are reused from step to step.
#[derive(Debug, Clone, Default)]
pub struct BatchInput {
    /// Token ids, one sequence after the other.
    pub tokens: Vec<u32>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Rotary position of each token in its sections, if any of them differs from the token's position in its
    /// sequence; else empty.
    pub rotary: Vec<[u32; 3]>,
    /// End of the positions that each token attends to, if tokens of pictures attend to those after them;
    /// else empty.
    pub ends: Vec<u32>,
    /// Features that replace the embeddings of tokens, in increasing rows.
    pub features: Vec<FeatureRows>,
    /// The new tokens of each sequence.
    pub spans: Vec<QuerySpan>,
    /// The block tables of all sequences, one after the other.
    pub blocks: Vec<u32>,
    /// Indices into `tokens` of those whose logits are wanted, increasing.
    pub logit_tokens: Vec<u32>,
    /// Changes of the sequences' recurrent states by the new tokens: one span a sequence, and a further one
    /// after each token whose state is also kept.
    pub states: Vec<StateSpan>,
    /// Tokens that the device takes from the step before; only of a backend that chooses tokens.
    pub carried: Vec<CarriedToken>,
}

/// An input token that is still on the device: the one that the step submitted before this one chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarriedToken {
    /// Token of this step, an index into [`BatchInput::tokens`]; the id that stands there is not read.
    pub token_idx: u32,
    /// Index among the chosen tokens, in the order of that step's wanted logits. If that token is
    /// [`NO_TOKEN`](crate::backend::NO_TOKEN), the row may compute any token, since its result is not read.
    pub chosen_idx: u32,
}

/// Features in place of the embeddings of adjacent tokens.
#[derive(Debug, Clone)]
pub struct FeatureRows {
    /// Index of the first token's row.
    pub first_row: usize,
    /// Number of tokens.
    pub n_rows: usize,
    /// The features of a picture.
    pub features: Arc<Features>,
    /// Index of the feature of the first token.
    pub first_feature: usize,
}

impl FeatureRows {
    /// The rows in place of the embeddings, one after the other.
    pub fn rows(&self) -> &[f32] {
        self.part(&self.features.rows)
    }

    /// The rows that are added after layer `layer_idx`, if there are any.
    pub fn deepstack(&self, layer_idx: usize) -> Option<&[f32]> {
        self.features.deepstack.get(layer_idx).map(|rows| self.part(rows))
    }

    fn part<'a>(&self, rows: &'a [f32]) -> &'a [f32] {
        &rows[self.first_feature * self.features.width..][..self.n_rows * self.features.width]
    }
}

impl BatchInput {
    /// Fills the input from a scheduled batch. Logits are computed for the tokens that `wants_logits` names
    /// by sequence and by index among the sequence's tokens.
    pub fn fill(&mut self, batch: &ScheduledBatch, wants_logits: impl Fn(usize, usize) -> bool) {
        self.clear();
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            let tokens = batch.tokens(scheduled);
            let first_token = self.tokens.len();
            self.spans.push(QuerySpan {
                first_row: first_token,
                n_rows: tokens.len(),
                start: scheduled.start as usize,
                first_block: self.blocks.len(),
            });
            scheduled.state.into_iter().for_each(|state| self.run_state(state, first_token, tokens.len()));
            self.tokens.extend_from_slice(tokens);
            self.positions.extend((scheduled.start..).take(tokens.len()));
            self.blocks.extend(batch.blocks(scheduled).iter().map(|block| block.0));
            let wanted = (0..tokens.len()).filter(|&i| wants_logits(sequence_idx, i));
            self.logit_tokens.extend(wanted.map(|i| (first_token + i) as u32));
        }
    }

    /// Sets the rotary positions of a batch's tokens, if a prompt has positions in several sections.
    pub fn fill_rotary(&mut self, batch: &ScheduledBatch) {
        let has_sections = |scheduled: &ScheduledSequence| {
            scheduled.media.as_ref().is_some_and(|media| !media.positions.is_empty())
        };
        self.rotary.clear();
        if !batch.sequences().iter().any(has_sections) {
            return;
        }
        for scheduled in batch.sequences() {
            let positions = (scheduled.start..).take(scheduled.n_tokens());
            self.rotary.extend(positions.map(|position| scheduled.rotary_position(position).0));
        }
    }

    /// Lets the tokens of each picture attend to all others of the picture.
    pub fn fill_ends(&mut self, batch: &ScheduledBatch) {
        self.ends.clear();
        let sees_picture = |scheduled: &ScheduledSequence| {
            let positions = scheduled.start..scheduled.start + scheduled.n_tokens() as u32;
            let spans = scheduled.media.iter().flat_map(|media| &media.spans);
            spans
                .into_iter()
                .any(|span| span.start < positions.end && span.end() > u64::from(positions.start))
        };
        if !batch.sequences().iter().any(sees_picture) {
            return;
        }
        for scheduled in batch.sequences() {
            let positions = (scheduled.start..).take(scheduled.n_tokens());
            let media = scheduled.media.as_ref();
            let end = |position| media.and_then(|media| Some(media.span_at(position)?.end() as u32));
            self.ends.extend(positions.map(|position| end(position).unwrap_or(position + 1)));
        }
    }

    /// Number of new tokens over all sequences.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The block and the slot in it that hold `position` of a sequence.
    pub fn slot(&self, span: &QuerySpan, position: usize) -> (usize, usize) {
        let block = self.blocks[span.first_block + position / BLOCK_TOKENS];
        (block as usize, position % BLOCK_TOKENS)
    }

    /// Makes `self` a copy of `other`, keeping the buffers.
    pub fn copy_from(&mut self, other: &Self) {
        self.tokens.clone_from(&other.tokens);
        self.positions.clone_from(&other.positions);
        self.rotary.clone_from(&other.rotary);
        self.ends.clone_from(&other.ends);
        self.features.clone_from(&other.features);
        self.spans.clone_from(&other.spans);
        self.blocks.clone_from(&other.blocks);
        self.logit_tokens.clone_from(&other.logit_tokens);
        self.carried.clone_from(&other.carried);
        self.states.clone_from(&other.states);
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.rotary.clear();
        self.ends.clear();
        self.features.clear();
        self.spans.clear();
        self.blocks.clear();
        self.logit_tokens.clear();
        self.carried.clear();
        self.states.clear();
    }

    /// Adds the spans of one sequence.
    fn run_state(&mut self, state: StateShare, first_token: usize, n_tokens: usize) {
        let saves = state.saves.into_iter().flatten().map(|save| (save.n_tokens as usize, save.slot));
        let (mut n_before, mut from) = (0, state.from);
        for (n, to) in saves.chain([(n_tokens, state.to)]) {
            self.states.push(StateSpan {
                first_row: first_token + n_before,
                n_rows: n - n_before,
                from: from.map(|slot| slot.0),
                to: to.0,
                continues: n_before > 0,
            });
            (n_before, from) = (n, Some(to));
        }
    }
}
