//! Refusals and failures of the requests of an engine, and the events that carry them. Does not know HTTP
//! statuses.

use crate::fleet::replica;
use crate::scheduling::admission::Refusal;
use crate::scheduling::batch::SequenceError;
use crate::scheduling::executor::ExecutorError;

/// Reason why a request was not taken in. Said at once, without waiting for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A request that can never run, or more than may wait.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The engine finishes what it has and takes nothing new.
    #[error("the engine is shutting down")]
    Draining,
    /// The engine has no executor and could not get another.
    #[error("the engine is not healthy")]
    Unhealthy,
}

/// An event of a request of an engine.
pub type StreamEvent = replica::StreamEvent<EngineFailure>;

/// Reason why a request that was taken in has no (more) result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineFailure {
    /// The step that computed it took too long and was given up.
    #[error("a step took longer than {timeout_ms} ms and was given up")]
    StepTimedOut {
        /// The limit.
        timeout_ms: u64,
    },
    /// The step that computed it panicked.
    #[error("a step failed unexpectedly")]
    StepPanicked,
    /// The executor could not run the step that computed it.
    #[error("a step failed: {0}")]
    StepFailed(ExecutorError),
    /// Its own sequence of a step failed.
    #[error("{0}")]
    SequenceFailed(#[from] SequenceError),
    /// Its first step did not begin in time.
    #[error("it waited {timeout_ms} ms in the queue and was given up")]
    QueueTimedOut {
        /// The limit.
        timeout_ms: u64,
    },
    /// Its reader was behind for too long.
    #[error("the reader was {n_events} events behind")]
    SlowReader {
        /// The weight of the events that waited when it was found to be behind: 1 each, and 1 more for every
        /// 8 log-probabilities.
        n_events: usize,
    },
    /// A request that can never run. [`SubmitError::Refused`] says so earlier, unless the request went round
    /// the handle.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its id is that of another request that is still alive.
    #[error("the request id is in use")]
    DuplicateId,
    /// The engine could not get another executor.
    #[error("the engine is not healthy")]
    Unhealthy,
    /// The engine stopped before the request was done.
    #[error("the engine has stopped")]
    Stopped,
}
