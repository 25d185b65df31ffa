//! What a running sequence keeps to guess its next tokens: an index of its own tokens, and how often such guesses were
//! right. Does not know what a guess costs and whether it is worth it.

mod acceptance;
mod prompt_lookup;

pub use acceptance::Acceptance;
pub use prompt_lookup::PromptLookup;

use crate::token::TokenId;

/// The speculation of one running sequence. It is dropped with the running state and built again from the tokens.
#[derive(Debug, Default)]
pub struct Speculation {
    /// Made when a draft is first worth looking for.
    lookup: Option<PromptLookup>,
    /// How often the drafts were right.
    pub acceptance: Acceptance,
}

impl Speculation {
    /// Appends to `drafts` up to `n` tokens that followed the longest earlier occurrence of the end of `tokens`, which has at
    /// least `min_match` tokens (the same number in every call).
    pub fn look_up(&mut self, tokens: &[TokenId], min_match: usize, n: usize, drafts: &mut Vec<TokenId>) {
        let lookup = self.lookup.get_or_insert_with(|| PromptLookup::new(min_match));
        lookup.propose(tokens, n, drafts);
    }
}
