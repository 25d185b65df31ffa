//! State of a running sequence from which its drafts are made: an index of its own tokens, and the
//! acceptance rate of each source. Does not know the cost of drafts.

mod acceptance;
mod prompt_lookup;

pub use acceptance::Acceptance;
pub use prompt_lookup::PromptLookup;

use crate::token::TokenId;

/// Source of a sequence's drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// Proposed by the executor after the step before.
    #[default]
    Proposed,
    /// Looked up in the sequence's own tokens.
    Lookup,
    /// Made by the executor's draft model in the step that verifies them.
    Model,
}

/// The speculation of one running sequence. It is dropped with the running state and built again from the
/// tokens.
#[derive(Debug, Default)]
pub struct Speculation {
    /// Lookup table, built when a draft is first worth looking up.
    lookup: Option<Box<PromptLookup>>,
    /// Tokens looked up for this step, whether they are used or not.
    looked_up: Vec<TokenId>,
    /// Share of looked-up tokens that were right.
    pub of_lookup: Acceptance,
    /// Share of the draft model's tokens that were right.
    pub of_model: Acceptance,
}

impl Speculation {
    /// Looks up to `n` tokens up that followed the longest earlier occurrence of the end of `tokens`, which
    /// has at least `min_match` tokens (the same number in every call).
    pub fn look_up(&mut self, tokens: &[TokenId], min_match: usize, n: usize) -> &[TokenId] {
        let lookup = self.lookup.get_or_insert_with(|| Box::new(PromptLookup::new(min_match)));
        self.looked_up.clear();
        lookup.propose(tokens, n, &mut self.looked_up);
        &self.looked_up
    }

    /// Whether nothing was looked up or verified: then a step without drafts changes nothing.
    pub fn is_unused(&self) -> bool {
        self.looked_up.is_empty()
            && self.of_lookup == Acceptance::default()
            && self.of_model == Acceptance::default()
    }

    /// Tokens that the last look-up returned.
    pub fn looked_up(&self) -> &[TokenId] {
        &self.looked_up
    }

    /// Notes a step that verified `n_drafts` of `source`, accepted `n_accepted` of them, and appended
    /// `new_tokens`. Looked-up drafts are judged by the tokens even if they were not used.
    pub fn observe(
        &mut self,
        source: DraftSource,
        n_drafts: usize,
        n_accepted: usize,
        new_tokens: &[TokenId],
    ) {
        match source {
            DraftSource::Proposed if n_drafts > 0 => {}
            DraftSource::Lookup if n_drafts > 0 => self.of_lookup.observe(n_drafts, n_accepted),
            DraftSource::Model if n_drafts > 0 => {
                self.of_model.observe(n_drafts, n_accepted);
                let n_judged = self.looked_up.len().min(new_tokens.len());
                let pairs = self.looked_up.iter().zip(new_tokens);
                self.of_lookup.observe(n_judged, pairs.take_while(|(draft, token)| draft == token).count());
            }
            _ => [&mut self.of_lookup, &mut self.of_model].into_iter().for_each(|of| of.observe(0, 0)),
        }
        self.looked_up.clear();
    }
}
