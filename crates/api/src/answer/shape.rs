//! What an answer shows, as far as its size depends on it.

/// Approximate bytes of JSON of a token's log-probability, alone and for each alternative beside it.
#[derive(Debug, Clone, Copy)]
pub struct LogprobBytes {
    /// Bytes for the token itself.
    pub token: usize,
    /// Bytes for each alternative.
    pub alternative: usize,
}

impl LogprobBytes {
    /// Bytes with this number of alternatives.
    pub fn with(self, n_alternatives: usize) -> usize {
        self.token + self.alternative * n_alternatives
    }
}

/// What an answer shows, as far as its size depends on it.
#[derive(Debug, Clone)]
pub struct AnswerShape {
    /// How often the log-probabilities of a prompt are shown: once, or with each choice.
    pub n_repeats: usize,
    /// The forms in which they are shown.
    pub prompt_logprobs: Vec<LogprobBytes>,
    /// The parameter that asked for them.
    pub prompt_logprobs_param: &'static str,
    /// The form in which those of the answer are shown, when asked for.
    pub logprobs: Option<LogprobBytes>,
    /// Whether token ids are shown.
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
