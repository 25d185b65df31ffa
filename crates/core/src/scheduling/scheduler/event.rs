//! Events of requests in a step, and the step itself. Does not know channels.

use std::sync::Arc;

use crate::request::{FinishReason, RequestId, SequenceId};
use crate::scheduling::batch::{ChosenToken, ScheduledBatch, SequenceError};
use crate::scheduling::scheduler::step_time::StepShape;
use crate::time::Timestamp;
use crate::timeline::Timeline;

/// A step in flight. It must be returned to [`Scheduler::complete`] or to [`Scheduler::fail`]; both consume
/// it, so that a step ends exactly once.
///
/// [`Scheduler::complete`]: super::Scheduler::complete
/// [`Scheduler::fail`]: super::Scheduler::fail
#[derive(Debug)]
#[must_use = "a step that is not given back blocks the scheduler"]
pub struct Step {
    pub(super) batch: Arc<ScheduledBatch>,
    pub(super) started: Timestamp,
    pub(super) shape: StepShape,
    /// Number of steps planned before it.
    pub(super) number: u64,
}

impl Step {
    /// The batch to run. Shared, so that it can be left to an executor that hangs.
    pub fn batch(&self) -> &Arc<ScheduledBatch> {
        &self.batch
    }

    /// Time at which it was planned.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Tokens and positions of the step, on which its duration depends.
    pub fn shape(&self) -> StepShape {
        self.shape
    }
}

/// Event of a request. Events of one request come in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// A request left the queue: it runs, or it ended before.
    Dequeued {
        /// Id of the request.
        request: RequestId,
    },
    /// Log-probability of a prompt token, if requested: once for each of the positions 1, 2, ….
    PromptToken {
        /// Id of the request.
        request: RequestId,
        /// The prompt token at that position.
        token: ChosenToken<'a>,
    },
    /// The prompt of a request is computed. Comes once, before any output token.
    PromptDone {
        /// Id of the request.
        request: RequestId,
        /// Prompt tokens that were found in the cache.
        cached_tokens: u32,
    },
    /// An output token.
    Token {
        /// Index of the continuation.
        sequence: SequenceId,
        /// The token with its log-probabilities.
        token: ChosenToken<'a>,
    },
    /// A continuation ended.
    Finished {
        /// Index of the continuation.
        sequence: SequenceId,
        /// Reason of the end.
        reason: FinishReason,
        /// Times of the sequence's events.
        timeline: Timeline,
    },
    /// The request ended with all its continuations.
    Failed {
        /// Id of the request.
        request: RequestId,
        /// Reason of the failure.
        failure: Failure,
    },
}

/// Reason why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The step that computed it failed as a whole.
    #[error("the step failed")]
    Step,
    /// The sequence itself failed.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}
