//! Activations that are passed from stage to stage. Does not know the computation of stages.

use std::sync::{Arc, Mutex, PoisonError};
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
    link: Link,
    received: Vec<f32>,
}

#[derive(Debug)]
enum Link {
    Ranks {
        /// Communicator between the same ranks of all stages, in order.
        ranks: Box<dyn Communicator>,
        patience: Duration,
    },
    /// Rows that a stage passes to the next one, which runs after it on the same thread.
    InProcess(Arc<Mutex<Vec<f32>>>),
}

impl StageLinks {
    /// `ranks` has one rank of each stage, in order. `patience` is the timeout for another stage that is
    /// alive.
    pub fn new(ranks: Box<dyn Communicator>, patience: Duration) -> Self {
        Self { link: Link::Ranks { ranks, patience }, received: Vec::new() }
    }

    /// The ends of two stages in one process, which run a step one after the other.
    pub(crate) fn in_process() -> [Self; 2] {
        let rows = Arc::<Mutex<Vec<f32>>>::default();
        [Arc::clone(&rows), rows].map(|rows| Self { link: Link::InProcess(rows), received: Vec::new() })
    }

    /// Number of processes, each of which has a stage.
    pub(crate) fn n_processes(&self) -> usize {
        match &self.link {
            Link::Ranks { ranks, .. } => ranks.n_ranks(),
            Link::InProcess(_) => 1,
        }
    }

    /// The residual stream of the stage before, of `n_elements` elements.
    ///
    /// # Errors
    /// When that stage is lost.
    pub(crate) fn receive(&mut self, n_elements: usize) -> Result<&[f32], BackendError> {
        match &mut self.link {
            Link::Ranks { ranks, patience } => {
                self.received.resize(n_elements, 0.0);
                let before = ranks.rank() - 1;
                let bytes = bytemuck::cast_slice_mut(&mut self.received);
                let received = ranks.receive(before, bytes, Deadline::within(*patience));
                received.map_err(|error| lost(&error))?;
            }
            Link::InProcess(rows) => {
                std::mem::swap(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner), &mut self.received);
                assert_eq!(self.received.len(), n_elements, "the stage before has run the same step");
            }
        }
        Ok(&self.received)
    }

    /// Passes the residual stream on.
    ///
    /// # Errors
    /// When the next stage is lost.
    pub(crate) fn send(&mut self, residual: &[f32]) -> Result<(), BackendError> {
        match &mut self.link {
            Link::Ranks { ranks, patience } => {
                let next = ranks.rank() + 1;
                let sent = ranks.send(next, bytemuck::cast_slice(residual), Deadline::within(*patience));
                sent.map_err(|error| lost(&error))
            }
            Link::InProcess(rows) => {
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                rows.clear();
                rows.extend_from_slice(residual);
                Ok(())
            }
        }
    }

    /// Counts of the transferred data.
    pub fn usage(&self) -> Usage {
        match &self.link {
            Link::Ranks { ranks, .. } => ranks.usage(),
            Link::InProcess(_) => Usage::default(),
        }
    }
}
