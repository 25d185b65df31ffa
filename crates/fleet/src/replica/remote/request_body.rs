//! The body of a request to a worker: its first line, the pixel values of its contents, then lines with
//! commands while it runs. Does not know the lines' meaning.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::StreamExt;
use http_body::{Body, Frame};
use throng_core::prompt_media::MediaContent;

/// Number of pixel values that are copied to the connection at a time.
const PIECE_VALUES: usize = 16 << 10;

/// A body that ends when the sender of its commands is dropped.
#[derive(Debug)]
pub struct RequestBody {
    first: Bytes,
    /// Contents that are not completely sent, the next one last.
    contents: Vec<Arc<MediaContent>>,
    /// Number of pixel values of the next content that were sent.
    n_sent: usize,
    /// Commands, usually none: an empty unbounded channel does not allocate.
    commands: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl RequestBody {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self { first: Bytes::new(), contents: Vec::new(), n_sent: 0, commands: None }
    }

    /// Creates a body that is complete.
    pub fn of(bytes: Bytes) -> Self {
        Self { first: bytes, ..Self::empty() }
    }

    /// Creates a body of a first line, the pixel values of contents, and the lines sent later.
    pub fn new(
        first: Bytes,
        mut contents: Vec<Arc<MediaContent>>,
        commands: mpsc::UnboundedReceiver<Bytes>,
    ) -> Self {
        contents.reverse();
        Self { first, contents, n_sent: 0, commands: Some(commands) }
    }

    /// The next pixel values; `None` when all were sent.
    fn next_values(&mut self) -> Option<Bytes> {
        while let Some(content) = self.contents.last() {
            let bytes = throng_wire::content_bytes(content, self.n_sent, PIECE_VALUES);
            self.n_sent += PIECE_VALUES;
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
            self.contents.pop();
            self.n_sent = 0;
        }
        None
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
        if let Some(values) = self.next_values() {
            return Poll::Ready(Some(Ok(Frame::data(values))));
        }
        let Some(commands) = &mut self.commands else { return Poll::Ready(None) };
        commands.poll_next_unpin(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.contents.is_empty() && self.commands.is_none()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::poll_fn;
    use throng_core::prompt_media::{ContentLayout, SpanKind};

    use super::*;

    #[tokio::test]
    async fn pixel_values_follow_the_line_in_pieces() {
        let content = |n: u32| {
            let layout =
                ContentLayout { kind: SpanKind::Image, grid: [1, 1, 1], shape: vec![n], runs: Vec::new() };
            Arc::new(MediaContent::new(layout, (0..n).map(|i| i as f32).collect()).expect("valid"))
        };
        let contents = vec![content(40_000), content(0), content(7)];
        let (commands, receiver) = mpsc::unbounded();
        let mut body = RequestBody::new(Bytes::from_static(b"line"), contents.clone(), receiver);
        commands.unbounded_send(Bytes::from_static(b"command")).expect("open");
        drop(commands);
        let mut sent = Vec::new();
        let mut longest = 0;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let data = frame.into_data().expect("data");
            longest = longest.max(data.len());
            sent.extend_from_slice(&data);
        }
        let values = |content: &Arc<MediaContent>| throng_wire::content_bytes(content, 0, usize::MAX);
        let expected = [&b"line"[..], &values(&contents[0]), &values(&contents[2]), b"command"].concat();
        assert!(sent == expected);
        assert!(longest <= 4 * PIECE_VALUES);
    }
}
