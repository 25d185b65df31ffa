//! Phases of a server's shutdown. Does not know its cause.

/// Kind of shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// New requests are refused, and running ones may finish.
    Drain,
    /// Another process listens on the same socket: no connections are accepted, and no requests refused.
    HandOver,
}

impl From<()> for Shutdown {
    fn from((): ()) -> Self {
        Self::Drain
    }
}

/// Phase of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Normal operation.
    Serving,
    /// Another process accepts connections; requests on open ones are still served.
    HandedOver,
    /// New requests are refused; running ones may finish.
    Draining,
    /// Running requests are ended now.
    Cut,
}
