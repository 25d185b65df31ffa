//! Why a replica does not take a request in, or does not finish it. Does not know HTTP statuses.

use throng_core::scheduling::admission::Refusal;

/// Reason why a replica has no (more) result for a request. Callers match `kind` and `retryable`; `message`
/// is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReplicaError {
    /// Kind of failure.
    pub kind: ReplicaErrorKind,
    /// Whether another replica may succeed with the same request, where this one failed.
    pub retryable: bool,
    /// The replica's report, for operators.
    pub message: String,
}

/// Kinds of failure of a request that has no (more) result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaErrorKind {
    /// The scheduler refused it: it can never run there, or too much waits.
    Refused(Refusal),
    /// Too much is ahead of it.
    Overloaded {
        /// Milliseconds after which it may be tried again.
        retry_after_ms: u64,
    },
    /// Its deadline is too short for it, however little is ahead.
    DeadlineTooShort {
        /// Milliseconds that it would take.
        needed_ms: u64,
    },
    /// The request waited too long for its first step.
    QueuedTooLong,
    /// The request took too long.
    TimedOut,
    /// The replica takes no new requests: it finishes what it has and stops.
    Draining,
    /// The replica cannot compute anything.
    Unhealthy,
    /// The replica stopped before the request was done.
    Stopped,
    /// The request's constraint and its sampling parameters together left no token to choose.
    NothingAllowed,
    /// The request's constraint exceeded a limit while it was evaluated.
    ConstraintTooComplex,
    /// Computing the request failed.
    Failed,
}

impl ReplicaErrorKind {
    /// A short name for logs and labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused(Refusal::Empty | Refusal::InvalidToken { .. } | Refusal::UnreadableMedia) => {
                "invalid"
            }
            Self::Refused(Refusal::TooLong { .. }) => "too_long",
            Self::Refused(Refusal::NeverFits { .. }) => "never_fits",
            Self::Refused(Refusal::QueueFull { .. }) => "queue_full",
            Self::Overloaded { .. } => "overloaded",
            Self::DeadlineTooShort { .. } => "deadline",
            Self::QueuedTooLong => "queue_timeout",
            Self::TimedOut => "timeout",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Stopped => "stopped",
            Self::NothingAllowed => "nothing_allowed",
            Self::ConstraintTooComplex => "constraint_too_complex",
            Self::Failed => "failed",
        }
    }
}
