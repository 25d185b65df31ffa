//! Inputs of the engine's core, as data. Does not know where an input comes from.

use std::sync::Arc;

use crate::request::{Request, RequestId, SequenceId};
use crate::scheduling::batch::{ExportId, StepOutput, StoreSlot};
use crate::scheduling::block_hash::{BlockContent, BlockHash};
use crate::scheduling::block_store::StoreCapacity;
use crate::scheduling::executor::{ExecutorCapacity, ExecutorError};
use crate::scheduling::scheduler::MaskReport;
use crate::time::{Nanos, Timestamp};

/// Number of an executor; the first is 0, and each requested one has the next number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// An input of the core, which decides from inputs and their times alone.
#[derive(Debug)]
pub enum Input {
    /// A request that has entered through the intake.
    Submit {
        /// The request to add.
        request: Request,
        /// Time at which it was submitted; not later than now.
        arrived: Timestamp,
    },
    /// The reader of a request has disconnected.
    Abort(RequestId),
    /// A continuation needs no more tokens.
    AbortSequence(SequenceId),
    /// The reader of a request is so far behind that the request must be paused. One
    /// [`Self::ReaderCaughtUp`] follows for each, which may come after the next of these.
    ReaderBehind {
        /// Id of the request.
        request: RequestId,
        /// Weight of the waiting events.
        n_events: usize,
    },
    /// The reader of a request that was behind has caught up.
    ReaderCaughtUp(RequestId),
    /// Masks were evaluated: those of a sequence that was left out of a step, those of
    /// [`Effect::EvaluateMasks`](super::Effect::EvaluateMasks), or masks that took long.
    MasksEvaluated(MaskReport),
    /// The oldest step of an executor ended; the executor may have been abandoned long ago.
    StepDone(StepDone),
    /// A requested executor can run steps.
    ExecutorMade {
        /// Epoch of the executor.
        epoch: Epoch,
        /// Capacity of the executor.
        capacity: ExecutorCapacity,
    },
    /// A requested executor could not be created.
    ExecutorNotMade {
        /// Epoch of the executor.
        epoch: Epoch,
        /// Reason, for the log.
        reason: String,
    },
    /// A store for blocks was opened. Comes before the first request.
    StoreOpened {
        /// Number of slots and bounds of the store.
        capacity: StoreCapacity,
        /// Contents that it holds already, the most recently used last.
        kept: Arc<[(StoreSlot, BlockContent)]>,
    },
    /// A block of a batch was written to the store, or could not be.
    BlockWritten {
        /// Slot of the store.
        slot: StoreSlot,
        /// Whether its content can be read.
        succeeded: bool,
    },
    /// A slot was read into host memory, or its block came from another engine; or neither could be.
    BlockRead {
        /// The slot.
        slot: StoreSlot,
        /// Whether its bytes wait in host memory.
        succeeded: bool,
    },
    /// Another engine asks for these blocks.
    ExportBlocks(Arc<[(ExportId, BlockHash)]>),
    /// Finish the accepted requests, at most until `deadline`, and stop.
    Drain {
        /// Latest time; `None` for no limit.
        deadline: Option<Timestamp>,
    },
    /// No other input is waiting: deadlines are checked and the next step is planned. Comes after each
    /// batch of inputs, and when [`next_deadline`](super::EngineCore::next_deadline) has passed.
    Tick,
}

/// The end of the oldest step of an executor.
#[derive(Debug)]
pub struct StepDone {
    /// Epoch of the executor that ran the step.
    pub epoch: Epoch,
    /// Output of the step.
    pub output: StepOutput,
    /// Execution time of the step.
    pub executing: Nanos,
    /// Whether the step gave a result. After an error the executor is lost.
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
    /// The executor returned an error.
    Executor(ExecutorError),
    /// The executor panicked with this message.
    Panicked(String),
}
