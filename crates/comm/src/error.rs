//! Errors of communication. Does not know how it is done.

/// Reason why an operation of a communicator failed.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// Another rank no longer takes part.
    #[error("rank {rank} is lost: {how}")]
    PeerLost {
        /// Number of the rank, among all ranks.
        rank: usize,
        /// How the loss was detected.
        how: Loss,
    },
    /// A message is longer than its reader allows.
    #[error("a message of {n_bytes} bytes, where at most {max_bytes} are read")]
    TooLong {
        /// Length of the message.
        n_bytes: u64,
        /// Maximum bytes that are read.
        max_bytes: usize,
    },
    /// The system refused memory or threads.
    #[error("no communication between ranks: {0}")]
    System(#[from] std::io::Error),
}

/// Ways in which the loss of a rank is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// The rank left the group, or its process ended.
    #[error("it ended")]
    Ended,
    /// The rank's process no longer renews its lease: it was stopped, or the machine does not schedule it.
    #[error("its process has stopped")]
    Stopped,
    /// The rank did not reach an operation before the deadline.
    #[error("it did not answer in time")]
    TimedOut,
}
