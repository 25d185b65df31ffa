//! Chooses tokens from logits and reports log-probabilities. The outcome depends on the logits, the request's
//! parameters and the place of the token only, never on batch mates or earlier calls. Does not know
//! scheduling, text and where logits come from.

mod choose;
pub mod philox;
mod ranking;
mod rules;
mod survey;

use throng_core::constraint::TokenMask;
use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::batch::{ChosenToken, SequenceError, TokenLogprob};

use choose::Chooser;
use rules::LogitRules;
use survey::{Row, Survey};

/// Input for the choice of one token.
#[derive(Debug, Clone, Copy)]
pub struct SamplingInput<'a> {
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// The tokens that the request's constraint allows here, if it has one. Applies before all parameters.
    pub mask: Option<&'a TokenMask>,
    /// Prompt and output so far if [`SamplingParams::reads_history`], else empty.
    pub history: &'a [TokenId],
    /// Length of the prompt in tokens.
    pub n_prompt: u32,
    /// Index of the continuation in its request.
    pub sequence_index: u32,
    /// Position of the token to choose, counted from the prompt's first token: at least `n_prompt`.
    pub position: u32,
}

impl<'a> SamplingInput<'a> {
    /// Number of output tokens before this position.
    pub fn n_output(&self) -> u32 {
        self.position.saturating_sub(self.n_prompt)
    }

    /// The output so far, if the history is present.
    pub fn output(&self) -> &'a [TokenId] {
        self.history.get(self.n_prompt as usize..).unwrap_or_default()
    }
}

/// Chooses tokens; holds only buffers, so that a steady state does not allocate.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Survey of the logits as the model gave them.
    raw: Survey,
    /// Survey of the logits as the rules made them.
    ruled: Survey,
    rules: LogitRules,
    chooser: Chooser,
    /// The tokens among which one is chosen, where they are listed.
    allowed: Vec<TokenId>,
    top: Vec<TokenLogprob>,
}

/// A mask that allows at most one of this number of tokens is read as a list of them; with a wider one the
/// others are banned.
const LISTED_ONE_IN: usize = 8;

impl Sampler {
    /// Creates a sampler with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the token at `input.position` from the model's `logits` (one a token of the vocabulary), and
    /// reports log-probabilities if the parameters request them. `logits` are changed in between and
    /// restored.
    ///
    /// # Errors
    /// [`SequenceError::InvalidLogits`] when a logit is NaN or +∞, or no token is left to choose;
    /// [`SequenceError::NothingAllowed`] when none is left under a mask.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        input: &SamplingInput<'_>,
    ) -> Result<ChosenToken<'_>, SequenceError> {
        self.raw.read(logits).ok_or(SequenceError::InvalidLogits)?;
        let params = input.params;
        let uniform = match params.is_greedy() {
            true => 0.0,
            false => philox::uniform(params.seed, input.sequence_index, input.position),
        };
        let listed = list_allowed(&mut self.allowed, logits.len(), input);
        self.rules.apply(logits, input, input.mask.filter(|_| listed.is_none()));
        let chosen = match listed {
            Some(allowed) => self.chooser.choose_allowed(logits, allowed, params, uniform),
            None => match self.ruled.read_changed(&self.raw, logits, self.rules.changed_tokens()) {
                Some(row) => self.chooser.choose(row, params, uniform),
                None => Err(SequenceError::InvalidLogits),
            },
        };
        self.rules.undo(logits);
        let token = chosen
            .map_err(|error| if input.mask.is_some() { SequenceError::NothingAllowed } else { error })?;
        match params.logprobs {
            Some(n_top) => Ok(report(&mut self.chooser, &mut self.top, self.raw.row(logits), token, n_top)),
            None => Ok(ChosenToken { chosen: TokenLogprob { token, logprob: 0.0, rank: 0 }, top: &[] }),
        }
    }

    /// The log-probability and rank of `token` under `logits`, and the `n_top` most likely tokens with
    /// theirs, as for `prompt_logprobs`.
    ///
    /// # Errors
    /// [`SequenceError::InvalidLogits`] when a logit is NaN or +∞, or `token` is not in the vocabulary.
    pub fn logprobs(
        &mut self,
        logits: &[f32],
        token: TokenId,
        n_top: u32,
    ) -> Result<ChosenToken<'_>, SequenceError> {
        let row = self.raw.read(logits).ok_or(SequenceError::InvalidLogits)?;
        if token as usize >= logits.len() || row.max == f32::NEG_INFINITY {
            return Err(SequenceError::InvalidLogits);
        }
        Ok(report(&mut self.chooser, &mut self.top, row, token, n_top))
    }
}

/// The tokens that `allowed_token_ids` and the mask allow, if they are given one by one or few enough to be
/// listed.
fn list_allowed<'a>(
    listed: &'a mut Vec<TokenId>,
    vocabulary_size: usize,
    input: &SamplingInput<'a>,
) -> Option<&'a [TokenId]> {
    listed.clear();
    match (&input.params.allowed_token_ids, input.mask) {
        (Some(allowed), None) => return Some(allowed),
        (Some(allowed), Some(mask)) => listed.extend(allowed.iter().filter(|&&token| mask.contains(token))),
        (None, Some(mask)) if mask.n_allowed() <= vocabulary_size / LISTED_ONE_IN => {
            listed.extend(mask.tokens())
        }
        (None, _) => return None,
    }
    Some(listed)
}

/// Writes the log-probability and rank of `token`, and the `n_top` most likely tokens with theirs, to `top`.
fn report<'a>(
    chooser: &mut Chooser,
    top: &'a mut Vec<TokenLogprob>,
    row: Row<'_>,
    token: TokenId,
    n_top: u32,
) -> ChosenToken<'a> {
    let log_sum = f64::from(row.max) + chooser.sum_of_weights(row, 1.0).ln();
    let logprob_of = |logit: f32| (f64::from(logit) - log_sum) as f32;
    chooser.ranked.take_top(row, n_top as usize);
    let candidates = &chooser.ranked.candidates;
    top.clear();
    for (idx, candidate) in candidates.iter().enumerate() {
        let rank = match candidates[..idx].last() {
            Some(before) if before.logit == candidate.logit => top[idx - 1].rank,
            _ => idx as u32 + 1,
        };
        top.push(TokenLogprob { token: candidate.token, logprob: logprob_of(candidate.logit), rank });
    }
    let logit = row.logits[token as usize];
    ChosenToken { chosen: TokenLogprob { token, logprob: logprob_of(logit), rank: row.rank_of(logit) }, top }
}
