//! An index of a sequence's own tokens that finds earlier occurrences of its end, as LZ77 does: the tokens
//! that followed are drafts of the next ones. Does not judge drafts.

use crate::token::TokenId;

/// Maximum number of earlier occurrences that are compared, the newest ones.
const MAX_CANDIDATES: usize = 8;

/// Maximum number of tokens compared in one occurrence; a longer match counts no more.
const MAX_MATCH: usize = 32;

/// Minimum number of entries of the hash table.
const MIN_SLOTS: usize = 64;

/// An index of the positions of a growing list of tokens by the `min_match` tokens before each. Two words a
/// token; a look-up costs the tokens that are new since the one before and a bounded number of comparisons.
#[derive(Debug)]
pub struct PromptLookup {
    min_match: usize,
    /// Newest position for each hash, 0 for none. The number of entries is a power of two, at least the
    /// number of tokens.
    newest: Vec<u32>,
    /// Next older position with the same hash, for each indexed position; 0 for none.
    older: Vec<u32>,
}

impl PromptLookup {
    /// Creates an empty index of matches of at least `min_match` tokens, at least 1.
    pub fn new(min_match: usize) -> Self {
        Self { min_match: min_match.max(1), newest: Vec::new(), older: Vec::new() }
    }

    /// Appends to `drafts` up to `n` tokens that followed the longest earlier occurrence of the end of
    /// `tokens`, the newest of equally long ones. If the occurrence reaches up to the end, copying continues
    /// with the copied tokens, so that a cycle continues. `tokens` begins with those of the previous call.
    pub fn propose(&mut self, tokens: &[TokenId], n: usize, drafts: &mut Vec<TokenId>) {
        self.index(tokens);
        let Some(position) = self.longest_match(tokens) else { return };
        let n_before = drafts.len();
        for i in position..position + n {
            let token = tokens.get(i).copied().unwrap_or_else(|| drafts[n_before + i - tokens.len()]);
            drafts.push(token);
        }
    }

    /// Indexes the positions that have a token after them.
    fn index(&mut self, tokens: &[TokenId]) {
        if tokens.len() > self.newest.len() {
            let n_slots = tokens.len().next_power_of_two().max(MIN_SLOTS);
            self.newest.clear();
            self.newest.resize(n_slots, 0);
            self.older.clear();
            self.older.reserve_exact(n_slots);
        }
        for position in self.older.len()..tokens.len() {
            let older = match position.checked_sub(self.min_match) {
                Some(start) => {
                    let slot = self.slot(&tokens[start..position]);
                    std::mem::replace(&mut self.newest[slot], position as u32)
                }
                None => 0,
            };
            self.older.push(older);
        }
    }

    /// The position after the longest earlier occurrence of the end.
    fn longest_match(&self, tokens: &[TokenId]) -> Option<usize> {
        let end = &tokens[tokens.len().checked_sub(self.min_match)?..];
        let newest = self.newest[self.slot(end)];
        let older = |&position: &u32| Some(self.older[position as usize]);
        let positions = std::iter::successors(Some(newest), older).take_while(|&position| position > 0);
        let (mut best, mut best_length) = (None, self.min_match - 1);
        for position in positions.take(MAX_CANDIDATES) {
            let before = tokens[..position as usize].iter().rev().zip(tokens.iter().rev());
            let length = before.take(MAX_MATCH.max(self.min_match)).take_while(|(a, b)| a == b).count();
            if length > best_length {
                (best, best_length) = (Some(position as usize), length);
            }
        }
        best
    }

    fn slot(&self, tokens: &[TokenId]) -> usize {
        let mix = |hash: u64, &token: &TokenId| {
            (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        tokens.iter().fold(0, mix) as usize & (self.newest.len() - 1)
    }
}
