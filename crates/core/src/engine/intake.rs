//! Admission to the engine: by its state, the capacity of its executor, and the bound on waiting requests.
//! Plain data, so that a simulation decides as the handle does. Does not know threads and channels.

use crate::request::Request;
use crate::scheduling::admission::{Admission, QueueBound};
use crate::scheduling::executor::ExecutorCapacity;
use crate::scheduling::scheduler::SchedulerConfig;

use crate::engine::error::SubmitError;

/// State of the engine. An engine never returns to an earlier state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineState {
    /// Takes and runs requests.
    Running,
    /// Finishes its requests and takes no new ones.
    Draining,
    /// The engine has no executor and could not create another; it takes no requests.
    Unhealthy,
    /// The engine has stopped.
    Stopped,
}

/// Decides which requests enter. A request counts from [`Intake::enter`] until [`Intake::leave_queue`], so
/// that the bound includes requests that are on their way to the engine.
#[derive(Debug)]
pub struct Intake {
    admission: Admission,
    state: EngineState,
    queue: QueueBound,
}

impl Intake {
    /// Creates the intake of an engine with an executor of this capacity, with the bounds of `config`.
    pub fn new(config: &SchedulerConfig, capacity: ExecutorCapacity) -> Self {
        let max_tokens = usize::try_from(config.max_queued_tokens).unwrap_or(usize::MAX);
        Self {
            admission: Admission::new(capacity),
            state: EngineState::Running,
            queue: QueueBound::new(config.max_queued_requests as usize, max_tokens),
        }
    }

    /// Counts a request as waiting, or refuses it.
    ///
    /// # Errors
    /// When the request can never run, the queue is full, or the engine takes no new requests.
    pub fn enter(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.admission.check(request)?;
        self.check_state()?;
        Ok(self.queue.enter(request.n_queued_tokens())?)
    }

    /// Whether a prompt of one token could enter.
    ///
    /// # Errors
    /// Errors of [`Self::enter`].
    pub fn check_room(&self) -> Result<(), SubmitError> {
        self.check_state()?;
        Ok(self.queue.check(1)?)
    }

    /// Removes a request of `n_tokens` prompt and output tokens from the waiting ones: it runs, or it ended
    /// before.
    pub fn leave_queue(&mut self, n_tokens: usize) {
        self.queue.leave(n_tokens);
    }

    /// State of the engine.
    pub fn state(&self) -> EngineState {
        self.state
    }

    /// Advances to `state`; does nothing if the engine is in that state or a later one.
    pub fn advance_state(&mut self, state: EngineState) {
        self.state = self.state.max(state);
    }

    /// Maximum number of tokens (prompt and output) of one sequence.
    pub fn max_sequence_tokens(&self) -> usize {
        self.admission.max_sequence_tokens()
    }

    /// Number of waiting requests, and of their prompt tokens.
    pub fn queued(&self) -> (usize, usize) {
        (self.queue.n_requests(), self.queue.n_tokens())
    }

    fn check_state(&self) -> Result<(), SubmitError> {
        match self.state {
            EngineState::Running => Ok(()),
            EngineState::Draining | EngineState::Stopped => Err(SubmitError::Draining),
            EngineState::Unhealthy => Err(SubmitError::Unhealthy),
        }
    }
}

/// Settings of the engine's own scheduler, without a bound on waiting requests, because [`Intake`] has
/// bounded them.
pub fn without_queue_bound(config: &SchedulerConfig) -> SchedulerConfig {
    SchedulerConfig { max_queued_requests: u32::MAX, max_queued_tokens: u64::MAX, ..config.clone() }
}
