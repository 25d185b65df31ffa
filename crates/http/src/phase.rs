//! How far a server is on its way to its end. Does not know what brings it there.

/// End of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// New requests are refused, and the running ones may finish.
    Drain,
    /// Another process listens on the same socket: nothing is accepted any more, and nothing is refused.
    HandOver,
}

impl From<()> for Shutdown {
    fn from((): ()) -> Self {
        Self::Drain
    }
}

/// Phase of a server on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Requests are welcome.
    Serving,
    /// Another process accepts connections; requests on the open ones are still welcome.
    HandedOver,
    /// No new requests; the running ones may finish.
    Draining,
    /// Running requests end now.
    Cut,
}
