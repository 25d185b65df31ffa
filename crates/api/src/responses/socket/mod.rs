//! WebSocket mode of OpenAI's Responses: the messages of clients, and their scheduling over lanes. Does not
//! know sockets.

mod lanes;
mod message;

pub use lanes::{Lane, Lanes};
pub use message::{ClientMessage, error_message};
pub(super) use message::{MESSAGE_FIELDS, MessageHead};

/// Framing of a stream's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    #[default]
    ServerSent,
    /// Lines of JSON, each a message of a WebSocket connection, with the lane of its response.
    Messages(Lane),
}
