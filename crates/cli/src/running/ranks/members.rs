//! The processes of a divided model, on this host or in an MPI job, as communicators. Does not know what they
//! compute.

use std::sync::Arc;
use std::time::Duration;

use throng_comm::Communicator;
use throng_comm::mpi::MpiJob;
use throng_comm::shared::Membership;
use throng_model::parallel::group::RankGroup;
use throng_model::parallel::{Grid, RankLinks, StageLinks};

/// This process's place among the ranks of a model.
#[derive(Debug)]
pub(super) enum Members {
    /// Processes of this host, with a shared memory.
    Shared(Membership),
    /// Processes of an MPI job.
    Job(Arc<MpiJob>),
}

impl Members {
    /// The communicator of all ranks.
    pub(super) fn all(&self) -> Box<dyn Communicator> {
        match self {
            Self::Shared(membership) => Box::new(membership.all()),
            Self::Job(job) => job.all(),
        }
    }

    fn group(&self, grid: Grid, group_idx: usize) -> Option<Box<dyn Communicator>> {
        match self {
            Self::Shared(membership) => Some(Box::new(membership.group(group_idx + 1)?)),
            Self::Job(job) => job.group(group_idx + 1, &grid.groups()[group_idx]),
        }
    }

    /// Connections of a rank with the others. `patience` is the timeout for ranks that are alive.
    pub(super) fn links(&self, grid: Grid, rank: usize, patience: Duration) -> RankLinks {
        let [layers, stages] = grid.groups_of(rank);
        let layers = (grid.n_ranks > 1).then(|| self.group(grid, layers)).flatten();
        let stages = (grid.n_stages > 1).then(|| self.group(grid, stages)).flatten();
        RankLinks {
            layers: layers.map(|ranks| RankGroup::new(ranks, patience)),
            stages: stages.map(|ranks| StageLinks::new(ranks, patience)),
        }
    }
}
