//! Events of a running request, as text and reports of numbered choices. Does not know their origin.

use throng_api::answer::KeptTokens;
use throng_core::request::FinishReason;
use throng_fleet::replica::{ReplicaError, Timing, TokenReport};

/// Event of a running request.
#[derive(Debug)]
pub(crate) enum Output {
    /// A prompt is computed.
    Prompt {
        /// Index of the prompt.
        prompt_idx: usize,
        /// Number of its tokens that were found in the cache.
        cached_tokens: u32,
        /// Tokens that were computed and are kept at the client's wish.
        kept: KeptTokens,
        /// Log-probabilities of all its tokens but the first, if asked for.
        logprobs: Vec<TokenReport>,
    },
    /// A token of a choice, with the text that it completes.
    Token {
        /// Index of the choice: the prompt's index × `n` + the continuation's index.
        choice_idx: usize,
        /// Completed text, often empty.
        text: String,
        /// The token with its log-probabilities.
        report: TokenReport,
    },
    /// A choice ended.
    Finished {
        /// Index of the choice.
        choice_idx: usize,
        /// Text that was held back until the end.
        text: String,
        /// Reason of the end.
        reason: FinishReason,
        /// Stop string that ended the choice, if one did.
        stop: Option<String>,
        /// Whether moderation ended the choice.
        is_filtered: bool,
        /// Times of the choice's events.
        timing: Timing,
    },
    /// The request failed as a whole.
    Failed(ReplicaError),
}
