//! Why communication failed. Does not know how it is done.

/// Reason why an operation of a communicator failed.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// Another rank does not take part any more.
    #[error("rank {rank} is lost: {how}")]
    PeerLost {
        /// Number of the rank, among all ranks.
        rank: usize,
        /// How it was noticed.
        how: Loss,
    },
    /// A message is longer than its reader allows.
    #[error("a message of {n_bytes} bytes, where at most {max_bytes} are read")]
    TooLong {
        /// Length of the message.
        n_bytes: u64,
        /// Most bytes that are read.
        max_bytes: usize,
    },
    /// The system refused memory or threads.
    #[error("no communication between ranks: {0}")]
    System(#[from] std::io::Error),
}

/// How the loss of a rank was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// It left the group, or its process ended.
    #[error("it ended")]
    Ended,
    /// Its process renews its lease no more: it was stopped, or the machine does not run it.
    #[error("its process has stopped")]
    Stopped,
    /// It did not come to an operation before the deadline.
    #[error("it did not answer in time")]
    TimedOut,
}
