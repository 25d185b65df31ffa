//! A queue of response bytes between the task that makes them and the socket that sends them, bounded in bytes.
//! Refuses to know what the bytes say.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::{Semaphore, mpsc};

/// Most bytes that wait for a slow reader.
pub(super) const QUEUE_BYTES: usize = 32 << 10;

/// The end that is written to.
#[derive(Debug)]
pub(super) struct ByteSender {
    frames: mpsc::UnboundedSender<(Bytes, u32)>,
    room: Arc<Semaphore>,
}

/// The end that is a response's body.
#[derive(Debug)]
pub(super) struct ByteBody {
    frames: mpsc::UnboundedReceiver<(Bytes, u32)>,
    room: Arc<Semaphore>,
}

/// The reader has gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// Makes a queue.
pub(super) fn byte_queue() -> (ByteSender, ByteBody) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(QUEUE_BYTES));
    (ByteSender { frames: sender, room: room.clone() }, ByteBody { frames: receiver, room })
}

impl ByteSender {
    /// Queues a frame once there is room. A frame larger than the queue waits until the queue is empty.
    pub async fn send(&self, frame: Bytes) -> Result<(), Closed> {
        let n_bytes = frame.len().clamp(1, QUEUE_BYTES) as u32;
        let permit = self.room.acquire_many(n_bytes).await.map_err(|_| Closed)?;
        permit.forget();
        self.frames.send((frame, n_bytes)).map_err(|_| Closed)
    }

    /// Waits until the reader has gone.
    pub async fn closed(&self) {
        self.frames.closed().await;
    }
}

impl http_body::Body for ByteBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.frames.poll_recv(cx).map(|next| {
            next.map(|(bytes, n_bytes)| {
                self.room.add_permits(n_bytes as usize);
                Ok(Frame::data(bytes))
            })
        })
    }
}

impl Drop for ByteBody {
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_full_queue_waits_for_its_reader() {
        let (sender, mut body) = byte_queue();
        let half = Bytes::from(vec![0; QUEUE_BYTES / 2]);
        for _ in 0..2 {
            sender.send(half.clone()).now_or_never().expect("room").expect("a reader");
        }
        assert!(sender.send(Bytes::from_static(b"x")).now_or_never().is_none());
        let read = body.frame().await.expect("a frame").expect("data");
        assert_eq!(read.into_data().expect("data").len(), half.len());
        sender.send(Bytes::from_static(b"x")).now_or_never().expect("room").expect("a reader");
        assert!(sender.send(Bytes::from(vec![0; 1 << 20])).now_or_never().is_none());
        drop(body);
        assert_eq!(sender.send(half).await, Err(Closed));
        sender.closed().await;
    }
}
