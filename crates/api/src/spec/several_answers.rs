//! Number of generated outputs with `best_of` and beam search (vLLM's `use_beam_search`). Does not compare
//! outputs.

use throng_core::request::{BeamSearch, EarlyStopping, SamplingParams};

use super::options::GenerationOptions;
use crate::error::ApiError;

/// Maximum number of output tokens of all beams of a request together: they are kept until the search ends.
const MAX_BEAM_TOKENS: u64 = 1 << 17;

impl GenerationOptions {
    /// Number of outputs generated for each prompt or, in a beam search, of beams: `best_of`, or `n`
    /// without it.
    pub fn n_generated(&self) -> u32 {
        self.best_of.map_or(self.n(), |best_of| best_of as u32)
    }

    /// Number of continuations that the engine returns for each prompt: for a beam search, the `n` best
    /// beams.
    pub fn n_continuations(&self) -> u32 {
        if self.searches_beams() { self.n() } else { self.n_generated() }
    }

    /// Whether the answers are those of a beam search.
    pub fn searches_beams(&self) -> bool {
        self.use_beam_search.unwrap_or(false)
    }

    /// Whether log-probabilities must be generated to choose the best outputs.
    pub(crate) fn needs_logprobs(&self) -> bool {
        self.n_continuations() > self.n()
    }

    /// Adds the sampling parameters, which a beam search does not use, to the ignored parameters.
    pub(crate) fn ignore_sampling_of_beams(&mut self) {
        let given = [
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("top_k", self.top_k.is_some()),
            ("min_p", self.min_p.is_some()),
            ("seed", self.seed.is_some()),
        ];
        let searches_beams = self.searches_beams();
        for (name, _) in given.iter().filter(|(_, is_given)| *is_given && searches_beams) {
            self.ignored.add(name);
        }
    }

    /// Checks `best_of` and the parameters of a beam search.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub(crate) fn check_several(&self) -> Result<(), ApiError> {
        if i64::from(self.n_generated()) < i64::from(self.n()) {
            return Err(ApiError::invalid_value("best_of", "'best_of' must not be less than 'n'."));
        }
        if self.searches_beams() {
            return self.check_beams();
        }
        if self.n_generated() > self.n() && self.is_streaming() {
            return Err(ApiError::invalid_value("best_of", "'best_of' above 'n' cannot be streamed."));
        }
        let of_beams = [
            ("length_penalty", self.length_penalty.is_some_and(|penalty| penalty != 1.0)),
            ("early_stopping", self.early_stopping.is_some_and(|stop| stop != EarlyStopping::default())),
        ];
        match of_beams.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => {
                let reason = format!("'{name}' is only allowed when 'use_beam_search' is true.");
                Err(ApiError::invalid_value(*name, reason))
            }
        }
    }

    fn check_beams(&self) -> Result<(), ApiError> {
        if self.is_streaming() {
            let reason = "A beam search cannot be streamed: its answers are known only at its end.";
            return Err(ApiError::invalid_value("stream", reason));
        }
        if self.max_tokens == Some(0) {
            return Err(ApiError::integer_below_min_value(self.names.max_tokens, 1));
        }
        let is_not = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
        let refused = [
            ("logit_bias", !self.logit_bias.is_empty()),
            ("allowed_token_ids", self.allowed_token_ids.is_some()),
            ("bad_words", !self.bad_words.is_empty()),
            ("presence_penalty", is_not(self.presence_penalty, 0.0)),
            ("frequency_penalty", is_not(self.frequency_penalty, 0.0)),
            ("repetition_penalty", is_not(self.repetition_penalty, 1.0)),
            ("thinking_token_budget", self.thinking_budget().is_some()),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, is_given)| *is_given) {
            return Err(not_with_beams(name));
        }
        self.constraint().map_or(Ok(()), |constraint| Err(not_with_beams(&constraint.param)))
    }

    /// The parameters of the beam search, if requested.
    ///
    /// # Errors
    /// `invalid_value` when its beams together could have too many tokens.
    pub(crate) fn beam_search(&self, max_tokens: u32) -> Result<Option<BeamSearch>, ApiError> {
        if !self.searches_beams() {
            return Ok(None);
        }
        let width = self.n_generated();
        if u64::from(width) * u64::from(max_tokens) > MAX_BEAM_TOKENS {
            let reason = format!(
                "{width} beams of {max_tokens} tokens are too many: all beams of a search together may have \
                 {MAX_BEAM_TOKENS} output tokens."
            );
            return Err(ApiError::invalid_value(self.names.max_tokens, reason));
        }
        Ok(Some(BeamSearch {
            width,
            length_penalty: f64::from(self.length_penalty.unwrap_or(1.0)),
            early_stopping: self.early_stopping.unwrap_or_default(),
        }))
    }
}

/// The error of a parameter that beam search does not support.
pub fn not_with_beams(param: &str) -> ApiError {
    ApiError::unsupported_parameter(param, "It is not available with 'use_beam_search'.")
}

/// Bytes that the beams of a search hold until it ends: for each output token its node in the tree of
/// beams, and two copies in a sequence or an event.
pub fn beam_bytes(sampling: &SamplingParams) -> usize {
    const BEAM_TOKEN_BYTES: usize = 96;
    sampling.beams.map_or(0, |search| search.width as usize * sampling.max_tokens as usize * BEAM_TOKEN_BYTES)
}
