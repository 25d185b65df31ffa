//! What the engine's core decides, as data. Does not know how an effect is carried out.

use std::sync::Arc;

use crate::request::RequestId;
use crate::scheduling::batch::ScheduledBatch;
use crate::scheduling::masks::SequenceMasks;
use crate::timeline::request_trace::RequestTrace;

use super::input::Epoch;
use crate::engine::error::{EngineFailure, StreamEvent};
use crate::engine::intake::EngineState;
use crate::engine::step_log::StepRecord;

/// Actions, in the order of the effects.
#[derive(Debug, Clone)]
pub enum Effect {
    /// The submitted request is taken in: its stream is open until [`Effect::Close`].
    Accept(RequestId),
    /// The submitted request is not taken in, and its stream ends. The id may be that of another request.
    Refuse {
        /// The id it came with.
        request: RequestId,
        /// Reason.
        failure: EngineFailure,
    },
    /// A request waits no more: see [`Intake::leave_queue`](crate::engine::Intake::leave_queue). Once for
    /// each submitted request.
    LeaveQueue {
        /// Queued tokens that it counted: [`crate::request::Request::n_queued_tokens`].
        n_tokens: usize,
    },
    /// An event for the reader of a request.
    Deliver {
        /// Request of the stream.
        request: RequestId,
        /// The event.
        event: StreamEvent,
    },
    /// The stream of a request ends: after its last event, or with a failure. Once for each accepted request.
    Close {
        /// Request of the stream.
        request: RequestId,
        /// Reason of the end; none when all its continuations have finished.
        failure: Option<EngineFailure>,
        /// Trace of its time.
        trace: Arc<RequestTrace>,
    },
    /// Run this batch on the current executor, after those that it was given before; its end is told with
    /// [`Input::StepDone`](super::Input::StepDone).
    Execute {
        /// The current executor.
        epoch: Epoch,
        /// Batch to run.
        batch: Arc<ScheduledBatch>,
    },
    /// Evaluate these masks, which no step has yet, and tell it with
    /// [`Input::MasksEvaluated`](super::Input::MasksEvaluated). The masks of a batch are to be evaluated as
    /// well, which is told if they are awaited.
    EvaluateMasks(Arc<SequenceMasks>),
    /// The oldest step ended or was given up.
    EndStep {
        /// Record of the step; the time of planning is not known to the core and stands at 0.
        record: StepRecord,
        /// Failure; none when it gave a result.
        failure: Option<EngineFailure>,
    },
    /// Leave the current executor and make another; whether that succeeds is told with
    /// [`Input::ExecutorMade`](super::Input::ExecutorMade) or
    /// [`Input::ExecutorNotMade`](super::Input::ExecutorNotMade).
    ReplaceExecutor {
        /// The epoch of the new one.
        epoch: Epoch,
    },
    /// Leave the current executor: there will not be another.
    GiveUpExecutor {
        /// Reason, for the log.
        reason: String,
    },
    /// The engine is in another state. With [`EngineState::Stopped`] no effect comes any more but refusals.
    State(EngineState),
}
