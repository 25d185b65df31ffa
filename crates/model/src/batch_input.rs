//! One step's input in the flat form that a device takes: ids, positions, block tables. Does not know sampling and whose
//! sequences these are.

use throng_core::batch::{BLOCK_TOKENS, ScheduledBatch};

use crate::backend::CarriedToken;

/// One step's input. Buffers are reused from step to step.
#[derive(Debug, Clone, Default)]
pub struct BatchInput {
    /// Token ids, one sequence after the other.
    pub tokens: Vec<u32>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// The sequences.
    pub rows: Vec<BatchRow>,
    /// The block tables of all sequences, one after the other.
    pub blocks: Vec<u32>,
    /// Indices into `tokens` of those whose logits are wanted, increasing.
    pub logit_tokens: Vec<u32>,
    /// Tokens that the device takes from the step before; only of a backend that chooses tokens.
    pub carried: Vec<CarriedToken>,
}

/// One sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow {
    /// Its first token, an index into [`BatchInput::tokens`].
    pub first_token: usize,
    /// How many tokens it has in this batch.
    pub n_tokens: usize,
    /// The position of its first token.
    pub start: usize,
    /// Where its block table begins in [`BatchInput::blocks`].
    pub first_block: usize,
}

impl BatchInput {
    /// Fills the input from a scheduled batch. Logits are wanted for the tokens that `wants_logits` names by row
    /// and by index in the row.
    pub fn fill(&mut self, batch: &ScheduledBatch, wants_logits: impl Fn(usize, usize) -> bool) {
        self.clear();
        for (row_idx, row) in batch.rows().iter().enumerate() {
            let tokens = batch.tokens(row);
            let first_token = self.tokens.len();
            self.rows.push(BatchRow {
                first_token,
                n_tokens: tokens.len(),
                start: row.start as usize,
                first_block: self.blocks.len(),
            });
            self.tokens.extend_from_slice(tokens);
            self.positions.extend((row.start..).take(tokens.len()));
            self.blocks.extend(batch.blocks(row).iter().map(|block| block.0));
            let wanted = (0..tokens.len()).filter(|&i| wants_logits(row_idx, i));
            self.logit_tokens.extend(wanted.map(|i| (first_token + i) as u32));
        }
    }

    /// New tokens over all sequences.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The block and the slot in it that hold `position` of a sequence.
    pub fn slot(&self, row: &BatchRow, position: usize) -> (usize, usize) {
        let block = self.blocks[row.first_block + position / BLOCK_TOKENS];
        (block as usize, position % BLOCK_TOKENS)
    }

    /// Makes `self` a copy of `other`, keeping the buffers.
    pub fn copy_from(&mut self, other: &Self) {
        self.tokens.clone_from(&other.tokens);
        self.positions.clone_from(&other.positions);
        self.rows.clone_from(&other.rows);
        self.blocks.clone_from(&other.blocks);
        self.logit_tokens.clone_from(&other.logit_tokens);
        self.carried.clone_from(&other.carried);
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.rows.clear();
        self.blocks.clear();
        self.logit_tokens.clear();
        self.carried.clear();
    }
}
