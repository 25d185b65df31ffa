//! Converts events, loads and errors to and from their wire form. Does not know requests and sockets.

use super::{Load, ReplicaError, ReplicaErrorKind, ReplicaEvent, Status};

/// Converts an event for sending.
pub fn sent_event(event: ReplicaEvent) -> throng_wire::Event {
    match event {
        ReplicaEvent::Prompt { cached_tokens, logprobs } => {
            throng_wire::Event::Prompt { cached_tokens, logprobs }
        }
        ReplicaEvent::Token { index, report } => throng_wire::Event::Token { index, report },
        ReplicaEvent::Finished { index, reason, timing } => {
            throng_wire::Event::Finished { index, reason, timing }
        }
        ReplicaEvent::Failed { error } => throng_wire::Event::Failed { error: sent_error(error) },
    }
}

/// Converts a received event; `None` if it is not for a reader.
pub fn received_event(event: throng_wire::Event) -> Option<ReplicaEvent> {
    Some(match event {
        throng_wire::Event::Prompt { cached_tokens, logprobs } => {
            ReplicaEvent::Prompt { cached_tokens, logprobs }
        }
        throng_wire::Event::Token { index, report } => ReplicaEvent::Token { index, report },
        throng_wire::Event::Finished { index, reason, timing } => {
            ReplicaEvent::Finished { index, reason, timing }
        }
        throng_wire::Event::Failed { error } => ReplicaEvent::Failed { error: received_error(error) },
        throng_wire::Event::Accepted | throng_wire::Event::Unknown => return None,
    })
}

/// Converts an error for sending.
pub fn sent_error(error: ReplicaError) -> throng_wire::WireError {
    let kind = match error.kind {
        ReplicaErrorKind::Refused(refusal) => refusal.into(),
        ReplicaErrorKind::QueuedTooLong => throng_wire::ErrorKind::QueuedTooLong,
        ReplicaErrorKind::Draining => throng_wire::ErrorKind::Draining,
        ReplicaErrorKind::Unhealthy => throng_wire::ErrorKind::Unhealthy,
        ReplicaErrorKind::Stopped => throng_wire::ErrorKind::Stopped,
        ReplicaErrorKind::NothingAllowed => throng_wire::ErrorKind::NothingAllowed,
        ReplicaErrorKind::ConstraintTooComplex => throng_wire::ErrorKind::ConstraintTooComplex,
        // The other kinds are decided before a replica is reached.
        ReplicaErrorKind::Failed
        | ReplicaErrorKind::Overloaded { .. }
        | ReplicaErrorKind::DeadlineTooShort { .. }
        | ReplicaErrorKind::TimedOut => throng_wire::ErrorKind::Failed,
    };
    throng_wire::WireError { kind, retryable: error.retryable, message: error.message }
}

/// Converts a received error.
pub fn received_error(error: throng_wire::WireError) -> ReplicaError {
    let kind = match error.kind {
        throng_wire::ErrorKind::QueuedTooLong => ReplicaErrorKind::QueuedTooLong,
        throng_wire::ErrorKind::Draining => ReplicaErrorKind::Draining,
        throng_wire::ErrorKind::Unhealthy => ReplicaErrorKind::Unhealthy,
        throng_wire::ErrorKind::Stopped => ReplicaErrorKind::Stopped,
        throng_wire::ErrorKind::NothingAllowed => ReplicaErrorKind::NothingAllowed,
        throng_wire::ErrorKind::ConstraintTooComplex => ReplicaErrorKind::ConstraintTooComplex,
        kind => kind.refusal().map_or(ReplicaErrorKind::Failed, ReplicaErrorKind::Refused),
    };
    ReplicaError { kind, retryable: error.retryable, message: error.message }
}

/// Converts a status for sending.
pub fn sent_status(health: Status, load: Load, refuses: Option<ReplicaError>) -> throng_wire::Status {
    throng_wire::Status { health, load, refuses: refuses.map(sent_error), cache: None, ranks: None }
}
