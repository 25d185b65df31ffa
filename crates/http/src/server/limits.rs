//! Limits of a server, as whoever runs it sets them. Does not know where they come from.

use std::time::Duration;

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Number of connections open at a time; more wait in the kernel.
    pub max_connections: usize,
    /// Number of streams of an HTTP/2 connection at a time.
    pub max_streams: u32,
    /// Deadlines of each connection.
    pub timeouts: Timeouts,
    /// Time that running requests have to finish when the server ends; then they are cut.
    pub shutdown_timeout: Duration,
}

/// Deadlines of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Time from the first byte of a request to the end of its head; also from accepting to the first byte.
    pub header: Duration,
    /// Time without any request.
    pub idle: Duration,
    /// Time with something to send and nothing taken.
    pub write: Duration,
}

/// Responses that are sent as bytes, where there is no request to answer.
#[derive(Debug, Clone, Copy)]
pub struct RawResponses {
    /// Response to a client for whom the process has no descriptor left.
    pub too_many_connections: &'static [u8],
    /// Response to a client that begins without encryption where there is a certificate.
    pub not_https: &'static [u8],
}
