//! Steps that several ranks run together: the first one sends each step to the others, which follow. Does not
//! know processes.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_comm::{CommError, Communicator, Deadline};
use throng_core::fleet::replica::RankCounters;
use throng_core::scheduling::batch::{MalformedStep, ScheduledBatch, StepMessage, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use super::ModelRunner;
use crate::backend::Backend;
use crate::parallel::pictures::{self, MalformedFeatures};

/// Longest message of a step, in bytes.
const MAX_STEP_BYTES: usize = 256 << 20;

/// Number of steps after which the share of communication is logged.
const MEASURED_STEPS: u32 = 200;

/// Runs steps as rank 0 and has the others follow.
pub struct Leader<B: Backend> {
    runner: ModelRunner<B>,
    ranks: Box<dyn Communicator>,
    patience: Duration,
    message: StepMessage,
    bytes: Vec<u8>,
    measured: Measured,
    counters: Arc<RankCounters>,
    /// Time in exchanges at the end of the last step.
    exchanging: Duration,
    /// Owner of the processes of the other ranks, which run as long as the group exists.
    _others: Box<dyn Any + Send>,
}

/// Time of steps so far.
#[derive(Debug, Default)]
struct Measured {
    n_steps: u32,
    steps: Duration,
    /// Time in exchanges before the first of these steps.
    exchanging_before: Duration,
}

impl<B: Backend> Leader<B> {
    /// `runner` is that of rank 0's part, `ranks` are the communicators of all ranks; `others` is dropped
    /// with the executor.
    pub fn new(
        runner: ModelRunner<B>,
        ranks: Box<dyn Communicator>,
        patience: Duration,
        others: Box<dyn Any + Send>,
    ) -> Self {
        let (message, measured) = (StepMessage::default(), Measured::default());
        let (bytes, counters, exchanging) = Default::default();
        Self { runner, ranks, patience, message, bytes, measured, counters, exchanging, _others: others }
    }

    /// Counts steps in these counters.
    pub fn counted_by(self, counters: Arc<RankCounters>) -> Self {
        Self { counters, ..self }
    }

    /// Counts a step of this duration, and logs the share of communication of the first steps.
    fn measure(&mut self, took: Duration) {
        let exchanging = self.runner.exchanging();
        self.counters.count_step(took, exchanging.saturating_sub(self.exchanging));
        self.exchanging = exchanging;
        let Measured { n_steps, steps, exchanging_before } = &mut self.measured;
        if *n_steps > MEASURED_STEPS {
            return;
        }
        // The first step touches memory for the first time.
        if *n_steps == 0 {
            (*n_steps, *exchanging_before) = (1, self.runner.exchanging());
            return;
        }
        (*n_steps, *steps) = (*n_steps + 1, *steps + took);
        if *n_steps > MEASURED_STEPS {
            let exchanging = self.runner.exchanging().saturating_sub(*exchanging_before);
            tracing::info!(
                "measured in {MEASURED_STEPS} steps: {:.2} ms each, {:.1} % of it in communication, waiting for other \
                 ranks included",
                steps.as_secs_f64() * 1e3 / f64::from(MEASURED_STEPS),
                exchanging.as_secs_f64() / steps.as_secs_f64().max(1e-9) * 100.0,
            );
        }
    }
}

impl<B: Backend> Executor for Leader<B> {
    fn capacity(&self) -> ExecutorCapacity {
        self.runner.capacity()
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.message.fill(batch);
        self.message.forget_histories();
        self.bytes.clear();
        let written = serde_json::to_writer(&mut self.bytes, &self.message);
        written.map_err(|error| ExecutorError::Device(format!("a step that cannot be sent: {error}")))?;
        let deadline = Deadline::within(self.patience);
        for rank in 1..self.ranks.n_ranks() {
            let sent = self.ranks.send_message(rank, &self.bytes, deadline);
            sent.map_err(|error| ExecutorError::PeerLost(error.to_string()))?;
        }
        self.runner.submit(batch)?;
        if !self.runner.capacity().takes_media {
            return Ok(());
        }
        // The others begin when they have what rank 0 made of the pictures.
        let Some(input) = self.runner.newest_input() else { return Ok(()) };
        let written = pictures::write(input, &mut self.bytes);
        written.map_err(|error| ExecutorError::Device(format!("features that cannot be sent: {error}")))?;
        for rank in 1..self.ranks.n_ranks() {
            let sent = self.ranks.send_message(rank, &self.bytes, Deadline::within(self.patience));
            sent.map_err(|error| ExecutorError::PeerLost(error.to_string()))?;
        }
        Ok(())
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let begun = Instant::now();
        let result = self.runner.collect(batch, output);
        self.measure(begun.elapsed());
        result
    }
}

/// Reason why a rank follows no more.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Rank 0 has ended.
    #[error(transparent)]
    Leader(CommError),
    /// A message describes no step.
    #[error("a step that cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A message describes no batch.
    #[error(transparent)]
    Malformed(#[from] MalformedStep),
    /// A message describes no features of pictures.
    #[error(transparent)]
    Features(#[from] MalformedFeatures),
    /// The step failed.
    #[error(transparent)]
    Step(ExecutorError),
}

/// Runs the steps that rank 0 sends, until it has ended. With `sees_pictures` the features of pictures follow
/// each step.
///
/// # Errors
/// Always: it ends when rank 0 has ended or a step fails.
pub fn follow<B: Backend>(
    mut runner: ModelRunner<B>,
    ranks: &mut dyn Communicator,
    sees_pictures: bool,
) -> Result<std::convert::Infallible, FollowError> {
    let receive = |ranks: &mut dyn Communicator| {
        ranks.receive_message(0, MAX_STEP_BYTES, Deadline::NEVER).map_err(FollowError::Leader)
    };
    let mut batch = ScheduledBatch::default();
    loop {
        let message: StepMessage = serde_json::from_slice(&receive(ranks)?)?;
        // Rank 0 chooses tokens, so only it needs constraints.
        message.read(&mut batch, &|_| None)?;
        let mut step = runner.prepare_to_follow(&batch).map_err(FollowError::Step)?;
        if sees_pictures {
            let width = runner.width();
            pictures::read(&receive(ranks)?, width, step.add_pictures(&batch))?;
        }
        runner.follow(step).map_err(FollowError::Step)?;
    }
}
