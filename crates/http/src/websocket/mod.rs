//! WebSocket connections (RFC 6455) over HTTP/1.1: the handshake, messages of bounded size that count as
//! memory of requests, pings, and the close. Does not know the content of messages.

mod counted_io;
mod handshake;
mod socket;

pub use self::handshake::{Handshake, HandshakeError};
pub use self::socket::{Ended, Settings, WebSocket};
pub use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
