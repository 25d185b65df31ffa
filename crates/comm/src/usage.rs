//! Counts the use of a communicator. Does not know its purpose.

use std::time::Duration;

/// Counts of a communicator since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of collectives and messages.
    pub n_operations: u64,
    /// Bytes that this rank contributed or received.
    pub n_bytes: u64,
    /// Time in them, waiting for other ranks included.
    pub took: Duration,
}
