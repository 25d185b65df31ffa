//! The jobs of a build without MPI: none.

use std::sync::Arc;

use super::{EndProcess, JoinError};
use crate::Communicator;

/// An MPI job, of which a build without MPI has none.
#[derive(Debug)]
pub enum MpiJob {}

impl MpiJob {
    /// Refuses.
    ///
    /// # Errors
    /// Always: this build has no MPI.
    pub fn join(_end_process: EndProcess) -> Result<Arc<Self>, JoinError> {
        Err(JoinError::NotBuilt)
    }

    /// Number of this process in the job.
    pub fn rank(&self) -> usize {
        match *self {}
    }

    /// Number of processes in the job.
    pub fn n_ranks(&self) -> usize {
        match *self {}
    }

    /// The communicator of all ranks.
    pub fn all(self: &Arc<Self>) -> Box<dyn Communicator> {
        match **self {}
    }

    /// The communicator of a group.
    pub fn group(self: &Arc<Self>, _group_idx: usize, _members: &[usize]) -> Option<Box<dyn Communicator>> {
        match **self {}
    }

    /// Leaves the job.
    pub fn leave(&self) {
        match *self {}
    }
}
