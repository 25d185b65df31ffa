//! The body of a request to a worker: its first line, then lines with commands while it runs. Does not know
//! the lines' meaning.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::StreamExt;
use http_body::{Body, Frame};

/// A body that ends when the sender of its commands is dropped.
#[derive(Debug)]
pub struct RequestBody {
    first: Bytes,
    /// Commands, usually none: an unbounded channel allocates nothing while it is empty.
    commands: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl RequestBody {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self { first: Bytes::new(), commands: None }
    }

    /// Creates a body of a first line and the lines sent later.
    pub fn new(first: Bytes, commands: mpsc::UnboundedReceiver<Bytes>) -> Self {
        Self { first, commands: Some(commands) }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        let Some(commands) = &mut self.commands else { return Poll::Ready(None) };
        commands.poll_next_unpin(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.commands.is_none()
    }
}
