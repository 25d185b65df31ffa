//! Steps that several ranks run together: the first one sends each step to the others, which follow. Does not
//! know processes.

use std::any::Any;
use std::time::Duration;

use throng_comm::{CommError, Communicator, Deadline};
use throng_core::scheduling::batch::{MalformedStep, ScheduledBatch, StepMessage, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use crate::backend::Backend;
use crate::runner::ModelRunner;

/// Longest message of a step, in bytes.
const MAX_STEP_BYTES: usize = 256 << 20;

/// Runs steps as rank 0 and has the others follow.
pub struct Leader {
    runner: Box<dyn Executor>,
    ranks: Box<dyn Communicator>,
    patience: Duration,
    message: StepMessage,
    bytes: Vec<u8>,
    /// What lives as long as the group: the processes of the other ranks.
    _others: Box<dyn Any + Send>,
}

impl Leader {
    /// `runner` is that of rank 0's part, `ranks` are all of them; `others` is dropped with the executor.
    pub fn new(
        runner: Box<dyn Executor>,
        ranks: Box<dyn Communicator>,
        patience: Duration,
        others: Box<dyn Any + Send>,
    ) -> Self {
        Self { runner, ranks, patience, message: StepMessage::default(), bytes: Vec::new(), _others: others }
    }
}

impl Executor for Leader {
    fn capacity(&self) -> ExecutorCapacity {
        self.runner.capacity()
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.message.fill(batch);
        self.bytes.clear();
        let written = serde_json::to_writer(&mut self.bytes, &self.message);
        written.map_err(|error| ExecutorError::Device(format!("a step that cannot be sent: {error}")))?;
        let deadline = Deadline::within(self.patience);
        for rank in 1..self.ranks.n_ranks() {
            let sent = self.ranks.send_message(rank, &self.bytes, deadline);
            sent.map_err(|error| ExecutorError::PeerLost(error.to_string()))?;
        }
        self.runner.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.runner.collect(batch, output)
    }
}

/// Reason why a rank follows no more.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Rank 0 is gone.
    #[error(transparent)]
    Leader(CommError),
    /// A message describes no step.
    #[error("a step that cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A message describes no batch.
    #[error(transparent)]
    Malformed(#[from] MalformedStep),
    /// The step failed.
    #[error(transparent)]
    Step(ExecutorError),
}

/// Runs the steps that rank 0 sends, until it is gone.
///
/// # Errors
/// Always: it ends when rank 0 is gone or a step fails.
pub fn follow<B: Backend>(
    mut runner: ModelRunner<B>,
    ranks: &mut dyn Communicator,
) -> Result<std::convert::Infallible, FollowError> {
    let mut batch = ScheduledBatch::default();
    loop {
        let bytes = ranks.receive_message(0, MAX_STEP_BYTES, Deadline::NEVER).map_err(FollowError::Leader)?;
        let message: StepMessage = serde_json::from_slice(&bytes)?;
        // Rank 0 chooses tokens, so only it needs constraints.
        message.read(&mut batch, &|_| None)?;
        runner.follow(&batch).map_err(FollowError::Step)?;
    }
}
