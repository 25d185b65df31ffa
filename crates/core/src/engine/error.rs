//! Refusals and failures of the requests of an engine, and the events that carry them. Does not know HTTP
//! statuses.

use crate::fleet::replica;
use crate::scheduling::admission::Refusal;
use crate::scheduling::batch::SequenceError;
use crate::scheduling::executor::ExecutorError;

/// Reason why a request was refused, which is returned without waiting for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The request can never run, or more wait than may.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The engine finishes its requests and takes no new ones.
    #[error("the engine is shutting down")]
    Draining,
    /// The engine has no executor and could not create another.
    #[error("the engine is not healthy")]
    Unhealthy,
}

/// An event of a request of an engine.
pub type StreamEvent = replica::StreamEvent<EngineFailure>;

/// Reason why an accepted request has no further result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineFailure {
    /// The step that computed it took too long and was given up.
    #[error("a step took longer than {timeout_ms} ms and was given up")]
    StepTimedOut {
        /// Time limit in ms.
        timeout_ms: u64,
    },
    /// The step that computed it panicked.
    #[error("a step failed unexpectedly")]
    StepPanicked,
    /// The executor could not run the step that computed it.
    #[error("a step failed: {0}")]
    StepFailed(ExecutorError),
    /// The sequence of the request failed in a step.
    #[error("{0}")]
    SequenceFailed(#[from] SequenceError),
    /// The first step of the request did not begin in time.
    #[error("it waited {timeout_ms} ms in the queue and was given up")]
    QueueTimedOut {
        /// Time limit in ms.
        timeout_ms: u64,
    },
    /// The reader of the request was behind for too long.
    #[error("the reader was {n_events} events behind")]
    SlowReader {
        /// Weight of the waiting events when the reader was found to be behind: 1 for each, and 1 more for
        /// every 8 log-probabilities.
        n_events: usize,
    },
    /// The request can never run. [`SubmitError::Refused`] reports it earlier, unless the request did not use
    /// the handle.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The id is that of another request that has not ended.
    #[error("the request id is in use")]
    DuplicateId,
    /// The engine could not create another executor.
    #[error("the engine is not healthy")]
    Unhealthy,
    /// The engine stopped before the request was done.
    #[error("the engine has stopped")]
    Stopped,
}
