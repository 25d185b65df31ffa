//! The HTTP server below the gateway: sockets and HTTP, with limits on the memory that clients can occupy.
//! Does not know models, keys, or the formats of any API.
#![forbid(unsafe_code)]

pub mod awake;
pub mod body;
pub mod byte_queue;
mod connection;
mod exchange;
pub mod memory;
mod phase;
mod refusal;
pub mod retry_after;
mod server;
pub mod tls_roots;
pub mod websocket;

pub use connection::{
    ConnectionState, HALF_CLOSED_PING_INTERVAL, HALF_SENT_GRACE, InFlight, MAX_FRAME_BYTES,
};
pub use exchange::{Exchange, ReadError, Settled};
pub use phase::{Phase, Shutdown};
pub use refusal::{Refusal, Violation};
pub use server::{
    ClientCertificates, HeldFrame, Listener, MAX_HEADER_BYTES, MAX_HEADER_FIELD_BYTES, MAX_HEADER_FIELDS,
    MAX_URI_BYTES, RawResponses, Respond, ResponseBody, Server, ServerLimits, Timeouts, Tls, TlsConfig,
    TlsError, check_http2_fields,
};
