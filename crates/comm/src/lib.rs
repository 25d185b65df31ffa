//! Communication between the ranks that run one model together: collectives and messages, each with a
//! deadline. Sums have one fixed order by rank, so that their bits depend on the number of ranks alone. Does
//! not know models, steps and how a model is divided.
#![forbid(unsafe_code)]

mod error;
pub mod mpi;
pub mod shared;
mod sum;
mod usage;

use std::fmt::Debug;
use std::time::{Duration, Instant};

pub use error::{CommError, Loss};
pub use sum::Summands;
pub use usage::Usage;

/// One rank's end of a group of ranks. All members call the same collectives in the same order, with equal
/// lengths. After an error the group is of no further use.
pub trait Communicator: Send + Debug {
    /// Index of this rank in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn n_ranks(&self) -> usize;

    /// Replaces the summands of each rank with the sum over all ranks, element by element: the sum of the
    /// first half of the ranks (rounded down) plus that of the second half, each of them made in the same
    /// way. bfloat16 is summed in f32 and rounded once.
    ///
    /// # Errors
    /// When a rank is lost or the deadline passes.
    fn all_reduce(&mut self, summands: Summands<'_>, deadline: Deadline) -> Result<(), CommError>;

    /// Gathers the bytes of all ranks, in order of rank: of rank `i` as many as `lengths[i]`.
    ///
    /// # Errors
    /// When a rank is lost or the deadline passes.
    fn all_gather(
        &mut self,
        own: &[u8],
        lengths: &[usize],
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), CommError>;

    /// Gathers the bytes of all ranks at rank `root`, as [`Self::all_gather`]. The `out` of other ranks is
    /// unchanged, and may be empty.
    ///
    /// # Errors
    /// When a rank is lost or the deadline passes.
    fn gather(
        &mut self,
        root: usize,
        own: &[u8],
        lengths: &[usize],
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), CommError>;

    /// Copies the bytes of rank `root` to all others.
    ///
    /// # Errors
    /// When a rank is lost or the deadline passes.
    fn broadcast(&mut self, root: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError>;

    /// Sends bytes to another rank. They are buffered as long as there is room; otherwise the call waits for
    /// the reader.
    ///
    /// # Errors
    /// When that rank is lost or the deadline passes.
    fn send(&mut self, to: usize, bytes: &[u8], deadline: Deadline) -> Result<(), CommError>;

    /// Receives the bytes of one [`Self::send`] of another rank, which sent as many.
    ///
    /// # Errors
    /// When that rank is lost or the deadline passes.
    fn receive(&mut self, from: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError>;

    /// Waits until all ranks have reached this call.
    ///
    /// # Errors
    /// When a rank is lost or the deadline passes.
    fn barrier(&mut self, deadline: Deadline) -> Result<(), CommError>;

    /// Counts since the communicator was created.
    fn usage(&self) -> Usage;

    /// Sends a message of any length.
    ///
    /// # Errors
    /// Errors of [`Self::send`].
    fn send_message(&mut self, to: usize, message: &[u8], deadline: Deadline) -> Result<(), CommError> {
        self.send(to, &(message.len() as u64).to_le_bytes(), deadline)?;
        self.send(to, message, deadline)
    }

    /// Receives a message of another rank's [`Self::send_message`].
    ///
    /// # Errors
    /// Errors of [`Self::receive`], and when the message is longer than `max_bytes`.
    fn receive_message(
        &mut self,
        from: usize,
        max_bytes: usize,
        deadline: Deadline,
    ) -> Result<Vec<u8>, CommError> {
        let mut length = [0; 8];
        self.receive(from, &mut length, deadline)?;
        let n_bytes = u64::from_le_bytes(length);
        if n_bytes > max_bytes as u64 {
            return Err(CommError::TooLong { n_bytes, max_bytes });
        }
        let mut message = vec![0; n_bytes as usize];
        self.receive(from, &mut message, deadline)?;
        Ok(message)
    }
}

/// Latest time for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No limit: the operation ends when it has succeeded or a rank is lost.
    pub const NEVER: Self = Self(None);

    /// A deadline this duration from now.
    pub fn within(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}
