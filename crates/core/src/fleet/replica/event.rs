//! Events of a generation: tokens, ends, and times since the request arrived.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exact;
use crate::request::FinishReason;
use crate::scheduling::batch::{ChosenToken, TokenLogprob};
use crate::time::Timestamp;
use crate::timeline::{Timeline, latency};

/// Number of log-probabilities with the weight of one event without any.
const LOGPROBS_PER_UNIT: usize = 8;

/// An event of a running request, with errors of type `E`.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent<E> {
    /// The prompt is computed. Comes once, before any token; not for a resumed request.
    Prompt {
        /// Number of prompt tokens that were found in the cache.
        cached_tokens: u32,
        /// Log-probabilities of all prompt tokens except the first, if requested.
        logprobs: Vec<TokenReport>,
    },
    /// A new output token.
    Token {
        /// Index of the continuation.
        index: u32,
        /// Report of the token.
        report: TokenReport,
    },
    /// A continuation ended. The last event once all have.
    Finished {
        /// Index of the continuation.
        index: u32,
        /// Reason of the end.
        reason: FinishReason,
        /// Times of the continuation.
        timing: Timing,
    },
    /// The request ended with all its continuations. The last event.
    Failed {
        /// Reason of the failure.
        error: E,
    },
}

impl<E> StreamEvent<E> {
    /// The share of a stream's buffer that the event takes: 1, and 1 more for every 8 log-probabilities that
    /// it carries beside the token's own.
    pub fn weight(&self) -> usize {
        let n_logprobs = match self {
            Self::Prompt { logprobs, .. } => logprobs.iter().map(|report| 1 + report.top.len()).sum(),
            Self::Token { report, .. } => report.top.len(),
            Self::Finished { .. } | Self::Failed { .. } => 0,
        };
        1 + n_logprobs / LOGPROBS_PER_UNIT
    }

    /// The event with its error translated.
    pub fn map_error<F>(self, translate: impl FnOnce(E) -> F) -> StreamEvent<F> {
        match self {
            Self::Prompt { cached_tokens, logprobs } => StreamEvent::Prompt { cached_tokens, logprobs },
            Self::Token { index, report } => StreamEvent::Token { index, report },
            Self::Finished { index, reason, timing } => StreamEvent::Finished { index, reason, timing },
            Self::Failed { error } => StreamEvent::Failed { error: translate(error) },
        }
    }
}

/// A token with the requested log-probabilities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenReport {
    /// The token; its `logprob` and `rank` are 0 if no log-probabilities were requested.
    #[serde(rename = "token")]
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

impl From<ChosenToken<'_>> for TokenReport {
    fn from(token: ChosenToken<'_>) -> Self {
        Self { chosen: token.chosen, top: token.top.to_vec() }
    }
}

/// Times of events of a continuation, as durations since its request arrived: the clocks of two replicas
/// have no common origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// Time at which its first step began; `None` if it never ran, or if another replica ran that step.
    #[serde(with = "exact")]
    pub first_step: Option<Duration>,
    /// Time at which its first output token was chosen.
    #[serde(with = "exact")]
    pub first_token: Option<Duration>,
    /// Time at which its last output token was chosen.
    #[serde(with = "exact")]
    pub last_token: Option<Duration>,
    /// Time of the end.
    #[serde(with = "exact")]
    pub end: Duration,
    /// Number of output tokens, those from before it was resumed included.
    pub n_output: u32,
    /// Number of prompt tokens whose keys and values came from another replica.
    #[serde(skip_serializing_if = "is_zero")]
    pub pulled_tokens: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Timing {
    /// The times for a request that was submitted to this replica only after `delay`.
    #[must_use]
    pub fn delayed_by(self, delay: Duration) -> Self {
        let later = |time: Option<Duration>| time.map(|time| time + delay);
        Self {
            first_step: later(self.first_step),
            first_token: later(self.first_token),
            last_token: later(self.last_token),
            end: self.end + delay,
            n_output: self.n_output,
            pulled_tokens: self.pulled_tokens,
        }
    }

    /// The times for a caller that joined `delay` after the request was submitted, and shares its result.
    #[must_use]
    pub fn shifted_earlier(self, delay: Duration) -> Self {
        let earlier = |time: Option<Duration>| time.map(|time| time.saturating_sub(delay));
        Self {
            first_step: earlier(self.first_step),
            first_token: earlier(self.first_token),
            last_token: earlier(self.last_token),
            end: self.end.saturating_sub(delay),
            n_output: self.n_output,
            pulled_tokens: self.pulled_tokens,
        }
    }

    /// Creates the timing of `n_output` tokens that existed before.
    pub fn immediate(n_output: u32) -> Self {
        let first_token = (n_output > 0).then_some(Duration::ZERO);
        let first_step = Some(Duration::ZERO);
        Self { first_step, first_token, last_token: first_token, n_output, ..Self::default() }
    }

    /// Time from the first step to the first token.
    pub fn prefill(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_sub(self.first_step?))
    }

    /// Time from the first token to the last.
    pub fn decode(&self) -> Option<Duration> {
        Some(self.last_token?.saturating_sub(self.first_token?))
    }

    /// The mean time between two tokens; `None` before the second token.
    pub fn per_output_token(&self) -> Option<Duration> {
        latency::mean_gap(self.decode()?, self.n_output)
    }
}

impl From<&Timeline> for Timing {
    fn from(timeline: &Timeline) -> Self {
        let since = |time: Timestamp| Duration::from_nanos(time.since(timeline.arrived).0);
        Self {
            first_step: timeline.first_scheduled.map(since),
            first_token: timeline.first_token.map(since),
            last_token: timeline.last_token.map(since),
            end: timeline.finished.map(since).unwrap_or_default(),
            n_output: timeline.output_tokens,
            pulled_tokens: timeline.pulled_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_from_times() {
        let ms = Duration::from_millis;
        let timing = Timing {
            first_step: Some(ms(5)),
            first_token: Some(ms(30)),
            last_token: Some(ms(90)),
            end: ms(91),
            n_output: 3,
            pulled_tokens: 0,
        };
        for timing in [timing, timing.delayed_by(ms(1000))] {
            assert_eq!(timing.prefill(), Some(ms(25)));
            assert_eq!(timing.decode(), Some(ms(60)));
            assert_eq!(timing.per_output_token(), Some(ms(30)));
        }
        assert_eq!(timing.delayed_by(ms(10)).end, ms(101));
        assert_eq!(Timing { n_output: 1, ..timing }.per_output_token(), None);
        assert_eq!(Timing { first_step: None, ..timing }.prefill(), None);
    }
}
