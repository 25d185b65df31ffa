//! Ranks in the processes of an MPI job, on one host or several. Sums have the order, and so the bits, of
//! those over shared memory. An MPI job cannot replace a single rank, so a loss ends it: each process ends
//! itself by the function that it joined with. Does not know who started the job.
//!
//! Without the feature `mpi` there are no jobs.

#[cfg(not(feature = "mpi"))]
mod absent;
#[cfg(feature = "mpi")]
mod communicator;
#[cfg(feature = "mpi")]
mod exchange;
#[cfg(feature = "mpi")]
mod job;
#[cfg(feature = "mpi")]
mod lease;
#[cfg(feature = "mpi")]
mod members;
#[cfg(feature = "mpi")]
mod outbox;
#[cfg(feature = "mpi")]
mod waiting;

#[cfg(not(feature = "mpi"))]
pub use absent::MpiJob;
#[cfg(feature = "mpi")]
pub use job::MpiJob;

use crate::CommError;

/// Ends the process because a rank is lost: an operation that has begun cannot be withdrawn from MPI, which
/// holds its buffers.
pub type EndProcess = fn(&CommError) -> !;

/// Reason why a process cannot take part in an MPI job.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// This build has no MPI.
    #[error(
        "this binary was built without MPI, which ranks on several hosts need: build it with `cargo build \
         --release --features mpi`"
    )]
    NotBuilt,
    /// The process has joined already.
    #[error("the process is in an MPI job already")]
    JoinedBefore,
    /// The MPI library does not let several threads communicate.
    #[error("the MPI library does not support MPI_THREAD_MULTIPLE")]
    OneThread,
    /// The system refused a thread.
    #[error("no thread for MPI: {0}")]
    System(#[from] std::io::Error),
    /// The MPI library ended the thread that started it.
    #[error("MPI did not start")]
    NotStarted,
}
