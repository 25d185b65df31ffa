//! Activations on their way from stage to stage. Does not know what the stages compute.

use std::time::Duration;

use throng_comm::{Communicator, Deadline, Usage};

use super::group::{RankGroup, lost};
use crate::backend::BackendError;

/// Connections of a rank with the others.
#[derive(Debug, Default)]
pub struct RankLinks {
    /// Ranks that share its layers.
    pub layers: Option<RankGroup>,
    /// Ranks of the stages before and after it.
    pub stages: Option<StageLinks>,
}

/// A rank's end of a pipeline.
#[derive(Debug)]
pub struct StageLinks {
    /// One rank of each stage, in order.
    ranks: Box<dyn Communicator>,
    patience: Duration,
    received: Vec<f32>,
}

impl StageLinks {
    /// `ranks` has one rank of each stage, in order. `patience` is how long a stage waits for another one
    /// that lives.
    pub fn new(ranks: Box<dyn Communicator>, patience: Duration) -> Self {
        Self { ranks, patience, received: Vec::new() }
    }

    /// Number of stages.
    pub(crate) fn n_stages(&self) -> usize {
        self.ranks.n_ranks()
    }

    /// The residual stream of the stage before, of so many elements.
    ///
    /// # Errors
    /// When that stage is lost.
    pub(crate) fn receive(&mut self, n_elements: usize) -> Result<&[f32], BackendError> {
        self.received.resize(n_elements, 0.0);
        let before = self.ranks.rank() - 1;
        let bytes = bytemuck::cast_slice_mut(&mut self.received);
        let received = self.ranks.receive(before, bytes, Deadline::within(self.patience));
        received.map_err(|error| lost(&error))?;
        Ok(&self.received)
    }

    /// Passes the residual stream on.
    ///
    /// # Errors
    /// When the next stage is lost.
    pub(crate) fn send(&mut self, residual: &[f32]) -> Result<(), BackendError> {
        let next = self.ranks.rank() + 1;
        let sent = self.ranks.send(next, bytemuck::cast_slice(residual), Deadline::within(self.patience));
        sent.map_err(|error| lost(&error))
    }

    /// Counts of what was passed.
    pub fn usage(&self) -> Usage {
        self.ranks.usage()
    }
}
