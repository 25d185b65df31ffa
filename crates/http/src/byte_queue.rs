//! A bounded queue of response bytes from the task that writes them to the socket; the bytes count as
//! memory of answers. Does not know their content.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::StreamExt;
use http_body::Frame;
use tokio::sync::{Notify, Semaphore};

use crate::awake::within;
use crate::memory::{MemoryBudget, Part, Reservation};

/// Maximum bytes that wait for a slow reader.
pub const QUEUE_BYTES: usize = 8 << 10;

/// Sender of the queue.
#[derive(Debug)]
pub struct ByteSender {
    /// Queue of bytes. Does not allocate while it is empty, as it usually is.
    frames: mpsc::UnboundedSender<Queued>,
    reader: Arc<Reader>,
    memory: Arc<MemoryBudget>,
}

/// Receiver of the queue: a response's body.
#[derive(Debug)]
pub struct ByteBody {
    frames: mpsc::UnboundedReceiver<Queued>,
    reader: Arc<Reader>,
}

/// State of the reader, shared with the sender.
#[derive(Debug)]
struct Reader {
    /// Number of bytes that may be queued now.
    room: Semaphore,
    /// Notified when the reader is dropped.
    gone: Notify,
}

#[derive(Debug)]
struct Queued {
    bytes: Bytes,
    _memory: Reservation,
}

/// Error of a send whose reader was dropped or takes nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Unread;

/// Creates a queue.
pub fn byte_queue(memory: &Arc<MemoryBudget>) -> (ByteSender, ByteBody) {
    let (sender, receiver) = mpsc::unbounded();
    let reader = Arc::new(Reader { room: Semaphore::new(QUEUE_BYTES), gone: Notify::new() });
    (
        ByteSender { frames: sender, reader: reader.clone(), memory: memory.clone() },
        ByteBody { frames: receiver, reader },
    )
}

impl ByteSender {
    /// Queues bytes, waiting for room.
    ///
    /// # Errors
    /// [`Unread`] once the reader has been dropped, or has read no bytes for `limit`.
    pub async fn send(&self, mut bytes: Bytes, limit: Duration) -> Result<(), Unread> {
        while !bytes.is_empty() {
            let bytes = bytes.split_to(bytes.len().min(QUEUE_BYTES / 2));
            let room = within(limit, self.reader.room.acquire_many(bytes.len() as u32));
            room.await.map_err(|_| Unread)?.map_err(|_| Unread)?.forget();
            let mut memory = self.memory.reservation(Part::Answers);
            // The queue itself is bounded, and a running stream must not be refused.
            memory.add_always(bytes.len());
            self.frames.unbounded_send(Queued { bytes, _memory: memory }).map_err(|_| Unread)?;
        }
        Ok(())
    }

    /// Waits until the reader is dropped. Only one task may wait.
    pub async fn closed(&self) {
        if !self.frames.is_closed() {
            self.reader.gone.notified().await;
        }
    }
}

impl http_body::Body for ByteBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.frames.poll_next_unpin(cx).map(|next| {
            next.map(|queued| {
                self.reader.room.add_permits(queued.bytes.len());
                Ok(Frame::data(queued.bytes))
            })
        })
    }
}

impl Drop for ByteBody {
    fn drop(&mut self) {
        self.frames.close();
        self.reader.room.close();
        self.reader.gone.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_full_queue_waits_for_its_reader() {
        let (sender, mut body) = byte_queue(&MemoryBudget::new(1 << 20));
        let half = Bytes::from(vec![0; QUEUE_BYTES / 2]);
        for _ in 0..2 {
            sender.send(half.clone(), LIMIT).now_or_never().expect("room").expect("a reader");
        }
        assert!(sender.send(Bytes::from_static(b"x"), LIMIT).now_or_never().is_none());
        let read = body.frame().await.expect("a frame").expect("data");
        assert_eq!(read.into_data().expect("data").len(), half.len());
        sender.send(Bytes::from_static(b"x"), LIMIT).now_or_never().expect("room").expect("a reader");
        assert!(sender.send(Bytes::from(vec![0; 1 << 20]), LIMIT).now_or_never().is_none());
        drop(body);
        assert_eq!(sender.send(half, LIMIT).await, Err(Unread));
        sender.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_reader_that_takes_nothing_is_given_up() {
        let (sender, mut body) = byte_queue(&MemoryBudget::new(1 << 20));
        let bytes = Bytes::from(vec![0; 20 * QUEUE_BYTES]);
        let sending = tokio::spawn(async move { (sender.send(bytes.clone(), LIMIT).await, sender, bytes) });
        let mut n_read = 0;
        while n_read < 20 * QUEUE_BYTES {
            tokio::time::sleep(LIMIT / 2).await;
            n_read += body.frame().await.expect("a frame").expect("data").into_data().expect("data").len();
        }
        let (sent, sender, bytes) = sending.await.expect("sent");
        assert_eq!(sent, Ok(()), "a slow reader takes all of it in the end");
        assert_eq!(sender.send(bytes, LIMIT).await, Err(Unread));
    }
}
