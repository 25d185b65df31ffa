//! Decisions of the engine's core, as data. Does not know how an effect is carried out.

use std::sync::Arc;

use crate::request::{RequestId, TokenId};
use crate::scheduling::batch::ScheduledBatch;
use crate::scheduling::block_store::StoreOrder;
use crate::scheduling::masks::SequenceMasks;
use crate::timeline::request_trace::RequestTrace;

use super::input::Epoch;
use crate::engine::error::{EngineFailure, StreamEvent};
use crate::engine::intake::EngineState;
use crate::engine::step_log::StepRecord;

/// An action for the caller of the core to carry out, in the order of the effects.
#[derive(Debug, Clone)]
pub enum Effect {
    /// The submitted request is accepted: its stream is open until [`Effect::Close`].
    Accept(RequestId),
    /// The submitted request is refused, and its stream ends. Its id may be that of another request.
    Refuse {
        /// Id of the submitted request.
        request: RequestId,
        /// Reason of the failure.
        failure: EngineFailure,
    },
    /// A request no longer waits: see [`Intake::leave_queue`](crate::engine::Intake::leave_queue). Sent once
    /// for each submitted request.
    LeaveQueue {
        /// Queued tokens that it counted: [`crate::request::Request::n_queued_tokens`].
        n_tokens: usize,
    },
    /// An event for the reader of a request.
    Deliver {
        /// Request of the stream.
        request: RequestId,
        /// The event for the reader.
        event: StreamEvent,
    },
    /// The next tokens of [`swap_plain_tokens`](super::EngineCore::swap_plain_tokens), for their readers.
    DeliverPlain {
        /// Number of tokens.
        n_tokens: usize,
    },
    /// The stream of a request ends, after its last event or with a failure. Once for each accepted
    /// request.
    Close {
        /// Request of the stream.
        request: RequestId,
        /// Failure that ended the stream; `None` if all its continuations have finished.
        failure: Option<EngineFailure>,
        /// Times of the request in the engine.
        trace: Arc<RequestTrace>,
    },
    /// Run this batch on the current executor, after the batches before; its end is reported with
    /// [`Input::StepDone`](super::Input::StepDone).
    Execute {
        /// Epoch of the current executor.
        epoch: Epoch,
        /// Batch to run.
        batch: Arc<ScheduledBatch>,
    },
    /// Evaluate these masks, which no step has yet, and report it with
    /// [`Input::MasksEvaluated`](super::Input::MasksEvaluated). The masks of a batch must be evaluated too,
    /// and reported if they are awaited.
    EvaluateMasks(Arc<SequenceMasks>),
    /// Carry out this order for the store; a read is reported with
    /// [`Input::BlockRead`](super::Input::BlockRead).
    OrderStore(StoreOrder),
    /// The oldest step ended or was given up.
    EndStep {
        /// Record of the step; its time of planning, which the core has no clock for, is 0.
        record: StepRecord,
        /// Failure; `None` if the step gave a result.
        failure: Option<EngineFailure>,
    },
    /// Abandon the current executor and make another; the outcome is reported with
    /// [`Input::ExecutorMade`](super::Input::ExecutorMade) or
    /// [`Input::ExecutorNotMade`](super::Input::ExecutorNotMade).
    ReplaceExecutor {
        /// Epoch of the new executor.
        epoch: Epoch,
    },
    /// Abandon the current executor without making another.
    GiveUpExecutor {
        /// Reason, for the log.
        reason: String,
    },
    /// The engine has another state. After [`EngineState::Stopped`] the only effects are refusals.
    State(EngineState),
}

/// An output token without log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainToken {
    /// Request of the stream.
    pub request: RequestId,
    /// The token.
    pub token: TokenId,
}
