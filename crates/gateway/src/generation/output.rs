//! What happens to a request while it runs, as text and reports of numbered choices. Does not know how it
//! comes about.

use throng_core::request::FinishReason;
use throng_fleet::replica::{ReplicaError, Timing, TokenReport};

/// Event of the request.
#[derive(Debug)]
pub(crate) enum Output {
    /// A prompt is computed.
    Prompt {
        /// Index of the prompt.
        prompt_idx: usize,
        /// Its tokens that were found in the cache.
        cached_tokens: u32,
        /// Its tokens' log-probabilities but the first's, when asked for.
        logprobs: Vec<TokenReport>,
    },
    /// A token of a choice, with the text that it makes certain.
    Token {
        /// Index of the choice: the prompt's number × `n` + the continuation's.
        choice_idx: usize,
        /// Often empty.
        text: String,
        /// The token.
        report: TokenReport,
    },
    /// A choice ended.
    Finished {
        /// Index of the choice.
        choice_idx: usize,
        /// Text that was held back.
        text: String,
        /// Reason.
        reason: FinishReason,
        /// The stop string that ended it.
        stop: Option<String>,
        /// Whether it ended before a text that must not be sent.
        is_filtered: bool,
        /// Times of its events.
        timing: Timing,
    },
    /// The request failed as a whole.
    Failed(ReplicaError),
}
