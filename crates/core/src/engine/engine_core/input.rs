//! What the engine's core is told, as data. Does not know where an input comes from.

use crate::request::{Request, RequestId, SequenceId};
use crate::scheduling::batch::StepOutput;
use crate::scheduling::executor::{ExecutorCapacity, ExecutorError};
use crate::scheduling::scheduler::MaskReport;
use crate::time::{Nanos, Timestamp};

/// Number of an executor: one more with each that is requested; the first is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Everything from which the core decides, beside the time it is told.
#[derive(Debug)]
pub enum Input {
    /// A request that has entered through the intake.
    Submit {
        /// The request.
        request: Request,
        /// Time at which it was handed in; not later than now.
        arrived: Timestamp,
    },
    /// The reader of a request is gone.
    Abort(RequestId),
    /// One continuation needs no more tokens.
    AbortSequence(SequenceId),
    /// The reader of a request is so far behind that it has to be paused. One [`Self::ReaderCaughtUp`]
    /// answers it, which may come after the next of these.
    ReaderBehind {
        /// The request.
        request: RequestId,
        /// The weight of the events that wait.
        n_events: usize,
    },
    /// The reader of a request that was behind has caught up.
    ReaderCaughtUp(RequestId),
    /// Masks were evaluated: of a sequence that was left out of a step or of
    /// [`Effect::EvaluateMasks`](super::Effect::EvaluateMasks), or masks that took long.
    MasksEvaluated(MaskReport),
    /// The oldest step of an executor ended, maybe one that was given up long ago.
    StepDone(StepDone),
    /// An executor that was asked for can run steps.
    ExecutorMade {
        /// The executor.
        epoch: Epoch,
        /// Its capacity.
        capacity: ExecutorCapacity,
    },
    /// An executor that was asked for could not be made.
    ExecutorNotMade {
        /// The executor.
        epoch: Epoch,
        /// Reason, for the log.
        reason: String,
    },
    /// Finish what is there, at most until `deadline`, and stop.
    Drain {
        /// Latest time; none: as long as it takes.
        deadline: Option<Timestamp>,
    },
    /// No other input is there now: deadlines are checked and the next step is planned. Comes after each
    /// batch of inputs, and when [`next_deadline`](super::EngineCore::next_deadline) has passed.
    Tick,
}

/// The end of the oldest step of an executor.
#[derive(Debug)]
pub struct StepDone {
    /// Executor that ran the step.
    pub epoch: Epoch,
    /// Its output.
    pub output: StepOutput,
    /// Execution time.
    pub executing: Nanos,
    /// Whether it brought anything. After an error the executor is gone.
    pub result: Result<(), StepError>,
}

impl StepDone {
    /// The end of a step whose thread has died.
    pub fn of_dead_thread(epoch: Epoch, output: StepOutput) -> Self {
        let result = Err(StepError::Panicked("the thread has ended".to_owned()));
        Self { epoch, output, executing: Nanos::default(), result }
    }
}

/// Reason why a step gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepError {
    /// The executor said so.
    Executor(ExecutorError),
    /// The executor panicked with this message.
    Panicked(String),
}
