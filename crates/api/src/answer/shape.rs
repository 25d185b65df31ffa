//! The parts of an answer that determine its size.

/// Approximate bytes of JSON for a token's log-probability and for each alternative.
#[derive(Debug, Clone, Copy)]
pub struct LogprobBytes {
    /// Bytes for the token itself.
    pub token: usize,
    /// Bytes for each alternative.
    pub alternative: usize,
}

impl LogprobBytes {
    /// Bytes for a token with this number of alternatives.
    pub fn with(self, n_alternatives: usize) -> usize {
        self.token + self.alternative * n_alternatives
    }
}

/// The parts of an answer that determine its size.
#[derive(Debug, Clone)]
pub struct AnswerShape {
    /// Number of times that the log-probabilities of a prompt are written: once, or with each choice.
    pub n_repeats: usize,
    /// Forms in which the prompt's log-probabilities are written.
    pub prompt_logprobs: Vec<LogprobBytes>,
    /// Parameter that requested the prompt's log-probabilities.
    pub prompt_logprobs_param: &'static str,
    /// Form of the answer's log-probabilities, if requested.
    pub logprobs: Option<LogprobBytes>,
    /// Whether token ids are written.
    pub token_ids: bool,
}

impl Default for AnswerShape {
    /// The shape of text without log-probabilities and token ids.
    fn default() -> Self {
        Self {
            n_repeats: 1,
            prompt_logprobs: Vec::new(),
            prompt_logprobs_param: "",
            logprobs: None,
            token_ids: false,
        }
    }
}
