//! The ranks that a backend on this host computes with: sums and gathers of rows in host memory. Does not
//! know operations.

use std::time::Duration;

use throng_comm::{CommError, Communicator, Deadline, Summands, Usage};

use crate::backend::BackendError;

/// A backend's end of its group of ranks. After a rank is lost nothing is exchanged any more, and steps fail
/// when their results are requested.
#[derive(Debug)]
pub struct RankGroup {
    ranks: Box<dyn Communicator>,
    patience: Duration,
    lost: Option<BackendError>,
}

impl RankGroup {
    /// `patience` is the timeout of an exchange with a rank that is alive.
    pub fn new(ranks: Box<dyn Communicator>, patience: Duration) -> Self {
        Self { ranks, patience, lost: None }
    }

    /// Sums over the ranks, in place.
    pub fn sum(&mut self, rows: &mut [f32]) {
        let deadline = Deadline::within(self.patience);
        self.run(|ranks| ranks.all_reduce(Summands::F32(rows), deadline));
    }

    /// Gathers the columns of all ranks side by side at rank 0, which needs them: `part` is `[n, own width]`,
    /// `out` is `[n, all]`; rank `i` has `widths[i]` of these columns.
    pub fn gather_columns(&mut self, part: &[f32], widths: &[usize], out: &mut [f32]) {
        let deadline = Deadline::within(self.patience);
        let lengths: Vec<usize> = widths.iter().map(|width| width * size_of::<f32>()).collect();
        let (width, own) = (widths.iter().sum::<usize>().max(1), widths[self.ranks.rank()].max(1));
        for (part, out) in part.chunks_exact(own).zip(out.chunks_exact_mut(width)) {
            self.run(|ranks| {
                let (part, out) = (bytemuck::cast_slice(part), bytemuck::cast_slice_mut(out));
                ranks.gather(0, part, &lengths, out, deadline)
            });
        }
    }

    /// Whether a rank is lost.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Fails if a rank is lost.
    ///
    /// # Errors
    /// The loss of a rank.
    pub fn check(&self) -> Result<(), BackendError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Counts of the exchanged data.
    pub fn usage(&self) -> Usage {
        self.ranks.usage()
    }

    fn run(&mut self, exchange: impl FnOnce(&mut dyn Communicator) -> Result<(), CommError>) {
        if self.lost.is_none()
            && let Err(error) = exchange(&mut *self.ranks)
        {
            self.lost = Some(lost(&error));
        }
    }
}

/// The error of a device for a failed exchange.
pub(crate) fn lost(error: &CommError) -> BackendError {
    BackendError::PeerLost(error.to_string())
}
