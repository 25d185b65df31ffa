//! The ranks of a job as this process knows them, and its operations. Does not know MPI.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::EndProcess;
use crate::{CommError, Loss};

/// State of the job's ranks as this process knows it.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) rank: usize,
    /// Whether each rank has left.
    left: Vec<AtomicBool>,
    /// Whether this process is about to leave: no operation begins.
    is_leaving: AtomicBool,
    /// Number of operations in progress.
    n_active: AtomicUsize,
    end_process: EndProcess,
}

impl Members {
    pub(super) fn new(rank: usize, n_ranks: usize, end_process: EndProcess) -> Self {
        let left = (0..n_ranks).map(|_| AtomicBool::new(false)).collect();
        Self { rank, left, is_leaving: AtomicBool::new(false), n_active: AtomicUsize::new(0), end_process }
    }

    pub(super) fn n_ranks(&self) -> usize {
        self.left.len()
    }

    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::Acquire)
    }

    pub(super) fn note_left(&self, rank: usize) {
        self.left[rank].store(true, Ordering::Release);
    }

    pub(super) fn end_process(&self, error: &CommError) -> ! {
        (self.end_process)(error)
    }

    /// Lets no operation begin any more.
    pub(super) fn begin_leaving(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    /// Whether an operation is in progress.
    pub(super) fn is_active(&self) -> bool {
        self.n_active.load(Ordering::SeqCst) > 0
    }

    /// Fails if this process is about to leave.
    pub(super) fn check_open(&self) -> Result<(), CommError> {
        if self.is_leaving.load(Ordering::SeqCst) {
            return Err(CommError::PeerLost { rank: self.rank, how: Loss::Ended });
        }
        Ok(())
    }

    /// Runs an operation, unless this process is about to leave: MPI allows none after that.
    pub(super) fn active<T>(&self, run: impl FnOnce() -> Result<T, CommError>) -> Result<T, CommError> {
        self.n_active.fetch_add(1, Ordering::SeqCst);
        let result = self.check_open().and_then(|()| run());
        self.n_active.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
