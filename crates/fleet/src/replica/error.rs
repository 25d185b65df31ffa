//! Errors of replicas that refuse a request or fail to finish it. Does not know HTTP statuses.

use throng_core::scheduling::admission::Refusal;

/// Error of a replica that refuses a request or fails to finish it. Callers match `kind` and `retryable`;
/// `message` is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReplicaError {
    /// Kind of failure.
    pub kind: ReplicaErrorKind,
    /// Whether another replica may succeed with the same request.
    pub retryable: bool,
    /// Message for operators.
    pub message: String,
}

/// Kind of a replica's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaErrorKind {
    /// The scheduler refused the request: it can never run there, or the queue is full.
    Refused(Refusal),
    /// The predicted wait is too long.
    Overloaded {
        /// Milliseconds until a retry is useful.
        retry_after_ms: u64,
    },
    /// The request's deadline is too short even on an idle replica.
    DeadlineTooShort {
        /// Predicted milliseconds for the request.
        needed_ms: u64,
    },
    /// The request exceeded its time limit in the queue.
    QueuedTooLong,
    /// The request exceeded its time limit.
    TimedOut,
    /// The replica accepts no new requests: it finishes the running ones and stops.
    Draining,
    /// The replica cannot run steps.
    Unhealthy,
    /// The replica stopped before the request was done.
    Stopped,
    /// The request's constraint and sampling parameters together allow no token.
    NothingAllowed,
    /// The request's constraint exceeded a limit during generation.
    ConstraintTooComplex,
    /// Computing the request failed.
    Failed,
}

impl ReplicaErrorKind {
    /// Whether a replica with this failure no longer runs any request.
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Stopped | Self::Draining)
    }

    /// Whether it counts against the replica: not that it has no room, or announced its shutdown.
    pub(super) fn is_fault(self) -> bool {
        matches!(self, Self::Failed | Self::Unhealthy)
    }

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
