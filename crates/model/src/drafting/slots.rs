//! Tokens in the slots of the KV cache, and the progress of the draft model. Does not know sequences, only
//! their blocks.

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{BLOCK_TOKENS, BlockId};

/// The tokens of the model's keys and values, slot by slot, and the number of leading slots of each block in
/// which the draft model has keys and values of the same tokens. So the draft model can be left out of any
/// step and catch up later. 4 bytes a token and 9 a block.
///
/// A wrong entry costs drafts that are rejected, never a wrong output.
#[derive(Debug)]
pub(super) struct DraftSlots {
    tokens: Vec<TokenId>,
    n_followed: Vec<u8>,
    /// For each block, the number of the last pass that wrote it.
    written_in: Vec<u64>,
    pass: u64,
}

impl DraftSlots {
    /// Creates empty slots for a cache of `n_blocks`.
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            tokens: vec![0; n_blocks * BLOCK_TOKENS],
            n_followed: vec![0; n_blocks],
            written_in: vec![0; n_blocks],
            pass: 0,
        }
    }

    /// Notes that `tokens` are at the positions from `start` on. Entries that the draft model has computed
    /// ahead stay valid for the same tokens in the same block; a block that is written from its beginning may
    /// have been another sequence's before.
    pub(super) fn note(&mut self, blocks: &[BlockId], start: usize, tokens: &[TokenId]) {
        for (position, &token) in (start..).zip(tokens) {
            let (block, slot) = place(blocks, position);
            let noted = &mut self.tokens[block * BLOCK_TOKENS + slot];
            let n_followed = &mut self.n_followed[block];
            if slot == 0 || *noted != token {
                *n_followed = (*n_followed).min(slot as u8);
            }
            *noted = token;
        }
    }

    /// The tokens of a block.
    pub(super) fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.0 as usize * BLOCK_TOKENS..][..BLOCK_TOKENS]
    }

    /// Notes that a block came from elsewhere, with the model's keys and values of these tokens only.
    pub(super) fn replace(&mut self, block: BlockId, tokens: impl Iterator<Item = TokenId>) {
        let own = &mut self.tokens[block.0 as usize * BLOCK_TOKENS..][..BLOCK_TOKENS];
        own.iter_mut().zip(tokens).for_each(|(own, token)| *own = token);
        self.n_followed[block.0 as usize] = 0;
    }

    /// Notes that a block is copied, with the model's keys and values only: the draft model computes its own
    /// again.
    pub(super) fn copy(&mut self, from: BlockId, to: BlockId) {
        let (from, to) = (from.0 as usize, to.0 as usize);
        self.tokens.copy_within(from * BLOCK_TOKENS..(from + 1) * BLOCK_TOKENS, to * BLOCK_TOKENS);
        self.n_followed[to] = 0;
    }

    /// The first position below `end` without keys and values of the draft model; `end` if there is none.
    pub(super) fn first_missing(&self, blocks: &[BlockId], end: usize) -> usize {
        let n_blocks = end.div_ceil(BLOCK_TOKENS);
        let is_partial = |block: &BlockId| usize::from(self.n_followed[block.0 as usize]) < BLOCK_TOKENS;
        match blocks[..n_blocks].iter().position(is_partial) {
            Some(i) => end.min(i * BLOCK_TOKENS + usize::from(self.n_followed[blocks[i].0 as usize])),
            None => end,
        }
    }

    /// Appends the tokens at the positions from `start` to `end` to `tokens`.
    pub(super) fn read(&self, blocks: &[BlockId], start: usize, end: usize, tokens: &mut Vec<TokenId>) {
        tokens.extend((start..end).map(|position| {
            let (block, slot) = place(blocks, position);
            self.tokens[block * BLOCK_TOKENS + slot]
        }));
    }

    /// Begins a pass of the draft model, with no entry written yet.
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
    }

    /// Takes the blocks of the positions from `start` to `end` for a sequence of this pass. False, and
    /// nothing is taken, if another sequence of the pass writes to any of them: sequences share blocks that
    /// the draft model lacks.
    pub(super) fn take_for_writing(&mut self, blocks: &[BlockId], start: usize, end: usize) -> bool {
        let written = &blocks[start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)];
        let is_free = written.iter().all(|block| self.written_in[block.0 as usize] != self.pass);
        if is_free {
            written.iter().for_each(|block| self.written_in[block.0 as usize] = self.pass);
        }
        is_free
    }

    /// Notes that the draft model's state from position `end` on is invalid.
    pub(super) fn forget(&mut self, blocks: &[BlockId], end: usize) {
        for (block_idx, block) in blocks.iter().enumerate().skip(end / BLOCK_TOKENS) {
            let n_followed = &mut self.n_followed[block.0 as usize];
            *n_followed = (*n_followed).min(end.saturating_sub(block_idx * BLOCK_TOKENS) as u8);
        }
    }

    /// Notes that the draft model has keys and values of all positions below `end`, of which those from
    /// `start` on are new.
    pub(super) fn follow(&mut self, blocks: &[BlockId], start: usize, end: usize) {
        for position in start..end {
            let (block, slot) = place(blocks, position);
            self.n_followed[block] = slot as u8 + 1;
        }
    }
}

fn place(blocks: &[BlockId], position: usize) -> (usize, usize) {
    (blocks[position / BLOCK_TOKENS].0 as usize, position % BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [BlockId; 3] = [BlockId(4), BlockId(1), BlockId(2)];

    #[test]
    fn what_was_computed_ahead_stays_while_the_tokens_are_the_same() {
        let mut slots = DraftSlots::new(5);
        slots.note(&BLOCKS, 0, &[7; 20]);
        assert_eq!(slots.first_missing(&BLOCKS, 20), 0);
        slots.follow(&BLOCKS, 0, 20);
        assert_eq!((slots.first_missing(&BLOCKS, 20), slots.first_missing(&BLOCKS, 22)), (20, 20));
        slots.note(&BLOCKS, 20, &[1, 2, 3]);
        slots.follow(&BLOCKS, 20, 23);
        // The second draft was wrong.
        slots.note(&BLOCKS, 20, &[1, 9, 3]);
        assert_eq!(slots.first_missing(&BLOCKS, 23), 21);
        let mut tokens = Vec::new();
        slots.read(&BLOCKS, 19, 23, &mut tokens);
        assert_eq!(tokens, [7, 1, 9, 3]);
    }

    #[test]
    fn a_block_of_another_sequence_is_not_followed() {
        let mut slots = DraftSlots::new(5);
        slots.note(&BLOCKS, 0, &[7; 40]);
        slots.follow(&BLOCKS, 0, 40);
        // The same tokens after others: the keys and values differ.
        let other = [BlockId(0), BlockId(1)];
        slots.note(&other, 0, &[8; 16]);
        slots.note(&other, 16, &[7; 10]);
        slots.follow(&other, 0, 16);
        assert_eq!(slots.first_missing(&other, 26), 16);
        assert_eq!(slots.first_missing(&BLOCKS, 40), 16);
    }

    #[test]
    fn what_does_not_hold_is_forgotten() {
        let mut slots = DraftSlots::new(5);
        slots.note(&BLOCKS, 0, &[7; 40]);
        slots.follow(&BLOCKS, 0, 40);
        slots.forget(&BLOCKS, 18);
        assert_eq!(slots.first_missing(&BLOCKS, 40), 18);
        slots.forget(&BLOCKS, 16);
        assert_eq!(slots.first_missing(&BLOCKS, 40), 16);
    }

    #[test]
    fn a_copied_block_has_the_tokens_and_is_not_followed() {
        let mut slots = DraftSlots::new(5);
        slots.note(&BLOCKS, 0, &[7; 20]);
        slots.follow(&BLOCKS, 0, 20);
        slots.copy(BlockId(1), BlockId(3));
        let copied = [BlockId(4), BlockId(3)];
        assert_eq!(slots.first_missing(&copied, 20), 16);
        let mut tokens = Vec::new();
        slots.read(&copied, 15, 20, &mut tokens);
        assert_eq!(tokens, [7; 5]);
    }

    #[test]
    fn a_block_is_written_by_one_sequence_of_a_pass() {
        let mut slots = DraftSlots::new(5);
        slots.begin_pass();
        assert!(slots.take_for_writing(&BLOCKS, 0, 20));
        assert!(!slots.take_for_writing(&[BlockId(3), BlockId(1)], 0, 20));
        assert!(slots.take_for_writing(&[BlockId(3), BlockId(1)], 0, 16));
        slots.begin_pass();
        assert!(slots.take_for_writing(&BLOCKS, 0, 20));
    }
}
