//! What the reader of a stream gets: tokens, ends and failures of one request. Does not know channels.

use throng_core::batch::{ChosenToken, TokenLogprob};
use throng_core::request::FinishReason;
use throng_core::timeline::Timeline;

use crate::error::EngineFailure;

/// So many log-probabilities weigh as much as an event without any.
const LOGPROBS_PER_UNIT: usize = 8;

/// A token with what was asked to be reported beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenReport {
    /// The token; its `logprob` and `rank` are 0 where no log-probabilities were asked for.
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first; empty unless asked for.
    pub top: Vec<TokenLogprob>,
}

impl From<ChosenToken<'_>> for TokenReport {
    fn from(token: ChosenToken<'_>) -> Self {
        Self { chosen: token.chosen, top: token.top.to_vec() }
    }
}

/// Something happened to the request.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The prompt is computed. Comes once, before any token.
    Prompt {
        /// Prompt tokens that were found in the cache.
        cached_tokens: u32,
        /// The prompt tokens' log-probabilities but the first's, when asked for.
        logprobs: Vec<TokenReport>,
    },
    /// An output token.
    Token {
        /// Which continuation.
        index: u32,
        /// The token.
        report: TokenReport,
    },
    /// A continuation ended. The last event once all have.
    Finished {
        /// Which continuation.
        index: u32,
        /// Why.
        reason: FinishReason,
        /// When what happened.
        timeline: Timeline,
    },
    /// The request ended with all its continuations. The last event.
    Failed {
        /// Why.
        error: EngineFailure,
    },
}

impl StreamEvent {
    /// How much of a stream's buffer the event takes: 1, and 1 more for every 8 log-probabilities it carries beside the
    /// token's own.
    pub fn weight(&self) -> usize {
        let n_logprobs = match self {
            Self::Prompt { logprobs, .. } => logprobs.iter().map(|report| 1 + report.top.len()).sum(),
            Self::Token { report, .. } => report.top.len(),
            Self::Finished { .. } | Self::Failed { .. } => 0,
        };
        1 + n_logprobs / LOGPROBS_PER_UNIT
    }
}
