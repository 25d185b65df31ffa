//! Limits of a server, as configured by its owner. Does not read the configuration.

use std::time::Duration;

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Maximum number of open connections; more wait in the kernel.
    pub max_connections: usize,
    /// Maximum number of concurrent streams of an HTTP/2 connection.
    pub max_streams: u32,
    /// Deadlines of each connection.
    pub timeouts: Timeouts,
    /// Time that running requests have to finish at shutdown; then they are cut.
    pub shutdown_timeout: Duration,
}

/// Deadlines of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Maximum time from the first byte of a request to the end of its head, and from accepting to the
    /// first byte.
    pub header: Duration,
    /// Maximum time without a request.
    pub idle: Duration,
    /// Maximum time in which the client reads none of the bytes to send.
    pub write: Duration,
}

/// Raw responses for connections without a readable request.
#[derive(Debug, Clone, Copy)]
pub struct RawResponses {
    /// Response to a client when the process has no descriptors left.
    pub too_many_connections: &'static [u8],
    /// Response to an unencrypted client of a server with a certificate.
    pub not_https: &'static [u8],
}
