//! Errors of a worker for a request. Does not know HTTP statuses.

use serde::{Deserialize, Serialize};
use throng_core::scheduling::admission::Refusal;

/// Reason why a request has no further result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    /// Kind of the error.
    #[serde(flatten)]
    pub kind: ErrorKind,
    /// Whether another worker may succeed with the same request.
    #[serde(default)]
    pub retryable: bool,
    /// Message for operators.
    #[serde(default)]
    pub message: String,
}

/// Kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are those of `Refusal`")]
pub enum ErrorKind {
    /// The prompt has no tokens, or no continuation runs.
    Empty,
    /// The prompt has a token outside the vocabulary.
    InvalidToken { token: u32, vocabulary_size: u32 },
    /// The request has more tokens than a sequence may have.
    TooLong { n_tokens: u64, limit: u64 },
    /// The request needs more blocks than the cache has.
    NeverFits { needed_blocks: u64, n_blocks: u64 },
    /// The prompt has parts that the worker does not support.
    UnreadableMedia,
    /// Too many requests or tokens wait already.
    QueueFull { n_requests: u64, n_tokens: u64 },
    /// The request waited too long for its first step.
    QueuedTooLong,
    /// The worker takes no new requests.
    Draining,
    /// The worker cannot compute.
    Unhealthy,
    /// The worker stopped before the request had ended.
    Stopped,
    /// Constraint and sampling parameters together left no token to choose.
    NothingAllowed,
    /// A limit of the constraint was exceeded.
    ConstraintTooComplex,
    /// Another error, also one of a newer worker.
    #[serde(other)]
    Failed,
}

impl From<Refusal> for ErrorKind {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Empty => Self::Empty,
            Refusal::InvalidToken { token, vocabulary_size } => Self::InvalidToken { token, vocabulary_size },
            Refusal::TooLong { n_tokens, limit } => {
                Self::TooLong { n_tokens: n_tokens as u64, limit: limit as u64 }
            }
            Refusal::NeverFits { needed_blocks, n_blocks } => {
                Self::NeverFits { needed_blocks: needed_blocks as u64, n_blocks: n_blocks as u64 }
            }
            Refusal::UnreadableMedia => Self::UnreadableMedia,
            Refusal::QueueFull { n_requests, n_tokens } => {
                Self::QueueFull { n_requests: n_requests as u64, n_tokens: n_tokens as u64 }
            }
        }
    }
}

impl ErrorKind {
    /// The scheduler's refusal, if it is one.
    pub fn refusal(self) -> Option<Refusal> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Some(match self {
            Self::Empty => Refusal::Empty,
            Self::InvalidToken { token, vocabulary_size } => Refusal::InvalidToken { token, vocabulary_size },
            Self::TooLong { n_tokens, limit } => {
                Refusal::TooLong { n_tokens: size(n_tokens), limit: size(limit) }
            }
            Self::NeverFits { needed_blocks, n_blocks } => {
                Refusal::NeverFits { needed_blocks: size(needed_blocks), n_blocks: size(n_blocks) }
            }
            Self::UnreadableMedia => Refusal::UnreadableMedia,
            Self::QueueFull { n_requests, n_tokens } => {
                Refusal::QueueFull { n_requests: size(n_requests), n_tokens: size(n_tokens) }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_cross_and_unknown_kinds_are_failures() {
        for refusal in [
            Refusal::Empty,
            Refusal::InvalidToken { token: 7, vocabulary_size: 5 },
            Refusal::TooLong { n_tokens: 9, limit: 8 },
            Refusal::NeverFits { needed_blocks: 3, n_blocks: 2 },
            Refusal::UnreadableMedia,
            Refusal::QueueFull { n_requests: 1, n_tokens: 2 },
        ] {
            let error = WireError { kind: refusal.into(), retryable: true, message: "m".into() };
            let text = serde_json::to_string(&error).expect("plain data");
            let back: WireError = serde_json::from_str(&text).expect("what was written");
            assert_eq!(back, error, "{text}");
            assert_eq!(back.kind.refusal(), Some(refusal));
        }
        let newer: WireError = serde_json::from_str(r#"{"kind": "on_strike", "since": 3}"#).expect("a kind");
        assert_eq!(newer.kind, ErrorKind::Failed);
        assert!(newer.kind.refusal().is_none() && !newer.retryable);
    }
}
