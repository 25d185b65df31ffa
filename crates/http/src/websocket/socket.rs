//! An open WebSocket connection: text messages in and out, pings to a silent client, and the close.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::OnUpgrade;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::Utf8Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes as Payload, Message};

use super::counted_io::CountedIo;
use crate::awake::AwakeSleep;
use crate::connection::ConnectionState;
use crate::memory::{MemoryBudget, Part, Reservation};

/// Size of a connection's read buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Bytes of an open connection beside its messages.
const SOCKET_BYTES: usize = 2 * READ_BUFFER_BYTES;
/// Longest wait for the client's half of a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds of a WebSocket connection.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest message of a client in bytes, in one frame or in several.
    pub max_message_bytes: usize,
    /// A client that is silent for this long is sent a ping; one that does not answer it within the same time
    /// counts as disconnected.
    pub ping_interval: Duration,
    /// Budget in which the connection and its messages count.
    pub memory: Arc<MemoryBudget>,
}

/// An open WebSocket connection.
#[derive(Debug)]
pub struct WebSocket {
    stream: WebSocketStream<CountedIo>,
    connection: Arc<ConnectionState>,
    silence: AwakeSleep,
    /// Whether a ping is unanswered.
    has_pinged: bool,
    _memory: Reservation,
}

/// End of a WebSocket connection, or the reason why it must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client has closed it, or has disconnected.
    Closed,
    /// The client has broken a rule, or the server lacks memory for it: the close code, and the reason that
    /// the client gets.
    Failed(CloseCode, &'static str),
}

impl WebSocket {
    /// Takes a connection over once the response that accepts it has been sent.
    ///
    /// # Errors
    /// [`Ended::Closed`] where the connection ends before.
    pub(crate) async fn open(
        upgrade: OnUpgrade,
        connection: Arc<ConnectionState>,
        settings: Settings,
    ) -> Result<Self, Ended> {
        let upgraded = upgrade.await.map_err(|_| Ended::Closed)?;
        let mut memory = settings.memory.reservation(Part::Sockets);
        memory.add_always(SOCKET_BYTES);
        let io = CountedIo::new(upgraded, settings.memory.reservation(Part::Bodies));
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_frame_size(Some(settings.max_message_bytes))
            .max_message_size(Some(settings.max_message_bytes));
        let stream = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let silence = AwakeSleep::new(settings.ping_interval);
        Ok(Self { stream, connection, silence, has_pinged: false, _memory: memory })
    }

    /// Waits for the next message, answers pings, and sends them to a silent client. Can be dropped and
    /// called again without loss.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn receive(&mut self) -> Result<Bytes, Ended> {
        loop {
            let message = tokio::select! {
                message = self.stream.next() => message,
                () = &mut self.silence => {
                    self.ping().await?;
                    continue;
                }
            };
            self.has_pinged = false;
            self.silence.restart();
            match message {
                Some(Ok(Message::Text(text))) => {
                    self.stream.get_mut().begin_message();
                    return Ok(text.into());
                }
                Some(Ok(Message::Binary(_))) => {
                    return Err(Ended::Failed(CloseCode::Unsupported, "messages are text"));
                }
                // Pings and closes, which the library answers during the next read, and pongs.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(ended_by(&error)),
                None => return Err(Ended::Closed),
            }
        }
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        if self.has_pinged {
            return Err(Ended::Failed(CloseCode::Away, "a ping was not answered"));
        }
        self.has_pinged = true;
        self.silence.restart();
        self.write(Message::Ping(Payload::new())).await
    }

    /// Sends a message, which must be UTF-8.
    ///
    /// # Errors
    /// [`Ended::Closed`] if the client has disconnected, or reads nothing for the socket's write timeout.
    pub async fn send(&mut self, text: Bytes) -> Result<(), Ended> {
        let text = Utf8Bytes::try_from(text).map_err(|_| Ended::Failed(CloseCode::Error, "not UTF-8"))?;
        self.write(Message::Text(text)).await
    }

    async fn write(&mut self, message: Message) -> Result<(), Ended> {
        self.stream.send(message).await.map_err(|_| Ended::Closed)
    }

    /// Closes the connection with a code and a readable reason. Waits a little for the client's close frame.
    pub async fn close(mut self, code: CloseCode, reason: &'static str) {
        // What the client still sends must not turn the close into a reset.
        self.connection.set_linger();
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        let closing = async {
            if self.stream.close(Some(frame)).await.is_ok() {
                while let Some(Ok(_)) = self.stream.next().await {
                    self.stream.get_mut().begin_message();
                }
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
        let _ = self.stream.get_mut().shutdown().await;
    }

    /// Ends the connection as its end demands.
    pub async fn end(self, ended: Ended) {
        if let Ended::Failed(code, reason) = ended {
            self.close(code, reason).await;
        }
    }
}

fn ended_by(error: &Error) -> Ended {
    match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Ended::Closed,
        Error::Protocol(_) | Error::AttackAttempt => {
            Ended::Failed(CloseCode::Protocol, "it breaks the protocol")
        }
        Error::Utf8(_) => Ended::Failed(CloseCode::Invalid, "text is UTF-8"),
        Error::Capacity(_) => Ended::Failed(CloseCode::Size, "the message is too long"),
        Error::Io(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            Ended::Failed(CloseCode::Again, "the memory for requests is in use")
        }
        _ => Ended::Closed,
    }
}
