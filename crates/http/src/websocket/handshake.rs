//! The request that opens a WebSocket connection, and the response that accepts it. Does not know routes.

use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;

/// An acceptable request for a WebSocket connection.
#[derive(Debug)]
pub struct Handshake<B> {
    /// Response that accepts it.
    pub response: Response<B>,
    /// The connection once the response has been sent.
    pub connection: OnUpgrade,
}

/// Reason why a request opens no WebSocket connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// No request for a WebSocket connection.
    #[error("it asks for no WebSocket connection")]
    Absent,
    /// The client asks for another version of the protocol than 13.
    #[error("its version of the protocol is not 13")]
    Version,
    /// Breach of a rule of the handshake.
    #[error("{0}")]
    Malformed(String),
}

impl<B> Handshake<B> {
    /// Reads the request for a WebSocket connection; the response that accepts it has `body`.
    ///
    /// # Errors
    /// Returns a [`HandshakeError`].
    pub fn of<T>(request: &mut Request<T>, body: impl FnOnce() -> B) -> Result<Self, HandshakeError> {
        let response = create_response_with_body(request, body).map_err(|error| match error {
            Error::Protocol(
                ProtocolError::MissingUpgradeWebSocketHeader
                | ProtocolError::MissingConnectionUpgradeHeader
                | ProtocolError::WrongHttpMethod
                | ProtocolError::WrongHttpVersion,
            ) => HandshakeError::Absent,
            Error::Protocol(ProtocolError::MissingSecWebSocketVersionHeader) => HandshakeError::Version,
            error => HandshakeError::Malformed(error.to_string()),
        })?;
        Ok(Self { response, connection: hyper::upgrade::on(request) })
    }
}
