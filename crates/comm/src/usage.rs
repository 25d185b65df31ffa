//! How much a communicator was used. Does not know what for.

use std::time::Duration;

/// Counts of a communicator since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Collectives and messages.
    pub n_operations: u64,
    /// Bytes that this rank contributed or received.
    pub n_bytes: u64,
    /// Time in them, waiting for other ranks included.
    pub took: Duration,
}
