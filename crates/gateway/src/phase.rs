//! How far a server is on its way to its end. Does not know what brings it there.

/// How far a server is on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are welcome.
    Serving,
    /// No new requests; the running ones may finish.
    Draining,
    /// Running requests end now.
    Cut,
}
