//! Chooses tokens from logits and reports log-probabilities. The outcome depends on the logits, the request's
//! parameters and the place of the token only, never on batch mates or earlier calls. It refuses to know
//! scheduling, text and where logits come from.

mod choose;
pub mod philox;
mod ranking;
mod rules;
mod softmax;

use throng_core::batch::{ChosenToken, RowError, TokenLogprob};
use throng_core::request::{SamplingParams, TokenId};

use choose::Chooser;
use ranking::{Candidate, rank_of, top_of_vocabulary};
use rules::LogitRules;

/// For whom and where a token is chosen.
#[derive(Debug, Clone, Copy)]
pub struct SamplingInput<'a> {
    /// How to choose.
    pub params: &'a SamplingParams,
    /// Prompt and output so far when [`SamplingParams::reads_history`], else empty.
    pub history: &'a [TokenId],
    /// Length of the prompt in tokens.
    pub n_prompt: u32,
    /// Which continuation of its request.
    pub sequence_index: u32,
    /// Position of the token to choose, counted from the prompt's first token: at least `n_prompt`.
    pub position: u32,
}

impl<'a> SamplingInput<'a> {
    /// Output tokens before this one.
    pub fn n_output(&self) -> u32 {
        self.position.saturating_sub(self.n_prompt)
    }

    /// The output so far, when the history is there.
    pub fn output(&self) -> &'a [TokenId] {
        self.history.get(self.n_prompt as usize..).unwrap_or_default()
    }
}

/// Chooses tokens; holds only buffers, so that a steady state allocates nothing.
#[derive(Debug, Default)]
pub struct Sampler {
    rules: LogitRules,
    chooser: Chooser,
    candidates: Vec<Candidate>,
    top: Vec<TokenLogprob>,
}

impl Sampler {
    /// With empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the token at `input.position` from the model's `logits` (one a token of the vocabulary), and
    /// reports log-probabilities where the parameters ask for them. `logits` are changed in between and come back
    /// as they were.
    ///
    /// # Errors
    /// [`RowError::InvalidLogits`] when a logit is NaN or +∞, or no token is left to choose.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        input: &SamplingInput<'_>,
    ) -> Result<ChosenToken<'_>, RowError> {
        let max = softmax::checked_max(logits).ok_or(RowError::InvalidLogits)?;
        let params = input.params;
        let uniform = match params.is_greedy() {
            true => 0.0,
            false => philox::uniform(params.seed, input.sequence_index, input.position),
        };
        self.rules.apply(logits, input);
        let chosen = self.chooser.choose(logits, params, uniform);
        self.rules.undo(logits);
        let token = chosen?;
        match params.logprobs {
            Some(n_top) => Ok(self.report(logits, max, token, n_top)),
            None => Ok(ChosenToken { chosen: TokenLogprob { token, logprob: 0.0, rank: 0 }, top: &[] }),
        }
    }

    /// The log-probability and rank of `token` under `logits`, and the `n_top` most likely tokens with theirs:
    /// what `prompt_logprobs` asks for.
    ///
    /// # Errors
    /// [`RowError::InvalidLogits`] when a logit is NaN or +∞, or `token` is not in the vocabulary.
    pub fn logprobs(
        &mut self,
        logits: &[f32],
        token: TokenId,
        n_top: u32,
    ) -> Result<ChosenToken<'_>, RowError> {
        let max = softmax::checked_max(logits).ok_or(RowError::InvalidLogits)?;
        if token as usize >= logits.len() || max == f32::NEG_INFINITY {
            return Err(RowError::InvalidLogits);
        }
        Ok(self.report(logits, max, token, n_top))
    }

    fn report(&mut self, logits: &[f32], max: f32, token: TokenId, n_top: u32) -> ChosenToken<'_> {
        let log_sum = softmax::log_sum_exp(logits, max);
        let logprob_of = |logit: f32| (f64::from(logit) - log_sum) as f32;
        top_of_vocabulary(logits, n_top as usize, &mut self.candidates);
        self.top.clear();
        for (idx, candidate) in self.candidates.iter().enumerate() {
            let rank = match self.candidates[..idx].last() {
                Some(before) if before.logit == candidate.logit => self.top[idx - 1].rank,
                _ => idx as u32 + 1,
            };
            let logprob = logprob_of(candidate.logit);
            self.top.push(TokenLogprob { token: candidate.token, logprob, rank });
        }
        let logit = logits[token as usize];
        ChosenToken {
            chosen: TokenLogprob { token, logprob: logprob_of(logit), rank: rank_of(logits, logit) },
            top: &self.top,
        }
    }
}
