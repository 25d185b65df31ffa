//! Rows of logits that a device answers, and its answers. Does not know how a device chooses tokens.

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{ChosenToken, TokenLogprob};

use crate::sampler::SamplingInput;

/// A row of logits, and the results to compute from it.
#[derive(Debug, Clone, Copy)]
pub struct SamplingRow<'a> {
    /// Index of the row.
    pub row_idx: usize,
    /// The token whose log-probability is wanted: one to sample, or one of the prompt.
    pub token: WantedToken<'a>,
    /// Number of the most likely tokens that are reported, with their log-probabilities and that of the row's
    /// token; `None` if no log-probabilities are reported.
    pub logprobs: Option<u32>,
}

/// The token of a row.
#[derive(Debug, Clone, Copy)]
pub enum WantedToken<'a> {
    /// The token that the sampling parameters choose.
    Sampled(SamplingInput<'a>),
    /// A token of the prompt, of which the log-probability is wanted.
    Prompt(TokenId),
}

/// The tokens and log-probabilities that a device has sampled, in order of rows.
#[derive(Debug, Default)]
pub struct SampledRows {
    chosen: Vec<TokenLogprob>,
    top: Vec<TokenLogprob>,
    /// Ends of each row's most likely tokens in `top`.
    ends: Vec<usize>,
}

impl SampledRows {
    /// Empties it and keeps the buffers.
    pub fn clear(&mut self) {
        self.chosen.clear();
        self.top.clear();
        self.ends.clear();
    }

    /// Adds the token of a row with its log-probability and the most likely tokens.
    pub fn push(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.chosen.push(chosen);
        self.top.extend_from_slice(top);
        self.ends.push(self.top.len());
    }

    /// Adds the token of a row without log-probabilities; [`NO_TOKEN`](super::NO_TOKEN) where none could be
    /// chosen.
    pub fn push_token(&mut self, token: TokenId) {
        self.push(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
    }

    /// The sampled tokens of the rows.
    pub fn iter(&self) -> impl Iterator<Item = ChosenToken<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let parts = starts.zip(&self.ends).map(|(start, &end)| &self.top[start..end]);
        self.chosen.iter().zip(parts).map(|(&chosen, top)| ChosenToken { chosen, top })
    }
}
