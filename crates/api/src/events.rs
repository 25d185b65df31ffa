//! The events of a stream as bytes: server-sent events, or JSON lines.

use bytes::{Bytes, BytesMut};
use serde::Serialize;

/// Buffer of events to send.
#[derive(Debug, Default)]
pub struct Events(BytesMut);

impl Events {
    /// Adds an event with `event` as JSON. It must be plain data with string keys.
    pub fn push(&mut self, event: &impl Serialize) {
        let json = serde_json::to_vec(event).expect("events are plain data with text keys");
        self.push_data(&json);
    }

    /// Adds `[DONE]`, the last event of a stream.
    pub fn push_done(&mut self) {
        self.push_data(b"[DONE]");
    }

    /// Adds an event with this data, which must not contain a line break.
    pub fn push_data(&mut self, data: &[u8]) {
        self.0.extend_from_slice(b"data: ");
        self.0.extend_from_slice(data);
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event of this name with `event` as JSON. It must be plain data with string keys.
    pub fn push_named(&mut self, name: &str, event: &impl Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\n");
        self.push(event);
    }

    /// Adds a one-line comment, which clients ignore.
    pub fn push_comment(&mut self, comment: &str) {
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(comment.as_bytes());
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds `value` as a line of JSON. It must be plain data with string keys.
    pub fn push_line(&mut self, value: &impl Serialize) {
        let json = serde_json::to_vec(value).expect("events are plain data with text keys");
        self.push_bytes(&json);
        self.push_bytes(b"\n");
    }

    /// Adds raw bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Number of bytes not yet taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all bytes have been taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the bytes added since the last call.
    pub fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}
