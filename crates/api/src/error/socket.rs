//! Faults of WebSocket connections and of their messages. Does not know sockets.

use http::StatusCode;

use super::{ApiError, ErrorType};

impl ApiError {
    /// A request for a WebSocket connection that breaks a rule of the handshake.
    pub fn bad_websocket_handshake(reason: &str) -> Self {
        Self::bad_request("bad_websocket_handshake", format!("Invalid WebSocket handshake: {reason}."))
    }

    /// A request for a WebSocket connection of another version of the protocol.
    pub fn unsupported_websocket_version() -> Self {
        let message = "The version of the WebSocket protocol must be 13.";
        Self::client(StatusCode::UPGRADE_REQUIRED, "unsupported_websocket_version", message)
    }

    /// An invalid name of a lane.
    pub fn invalid_stream_id() -> Self {
        let message = "Invalid 'stream_id': expected 1 to 256 ASCII letters, digits, '_', '-' or '.'.";
        Self::bad_request("invalid_stream_id", message.to_owned()).with_param("stream_id")
    }

    /// More lanes than a connection may have.
    pub fn websocket_stream_limit_reached(max: usize) -> Self {
        let message = format!("Too many values of 'stream_id': a connection has at most {max}.");
        Self::bad_request("websocket_stream_limit_reached", message).with_param("stream_id")
    }

    /// More waiting requests than a connection may have.
    pub fn websocket_queue_full(max: usize) -> Self {
        let message = format!("Too many requests wait on this connection: at most {max} can.");
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, "websocket_queue_full", message)
            .retry_after(1)
    }

    /// The connection has reached the maximum age or the maximum time without use.
    pub fn websocket_connection_limit_reached(minutes: u64) -> Self {
        let message =
            format!("This connection has reached its limit of {minutes} minutes. Open a new one to go on.");
        Self::bad_request("websocket_connection_limit_reached", message)
    }
}
