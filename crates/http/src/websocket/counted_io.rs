//! The bytes of an upgraded connection. Bytes that were read and belong to no complete message yet count as
//! memory of requests. Does not know frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::memory::Reservation;

/// An upgraded connection that counts the bytes read.
#[derive(Debug)]
pub(super) struct CountedIo {
    io: TokioIo<Upgraded>,
    /// Reservation for the bytes of the message that is being read.
    memory: Reservation,
    n_read: usize,
}

impl CountedIo {
    /// Counts the bytes of `io` in `memory`, which is empty.
    pub fn new(io: Upgraded, memory: Reservation) -> Self {
        Self { io: TokioIo::new(io), memory, n_read: 0 }
    }

    /// Starts counting again from 0: a complete message is counted elsewhere.
    pub fn begin_message(&mut self) {
        self.n_read = 0;
        self.memory.give_back(usize::MAX);
    }
}

impl AsyncRead for CountedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let n_before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        this.n_read += buf.filled().len() - n_before;
        Poll::Ready(this.memory.cover(this.n_read).map_err(|_| io::ErrorKind::OutOfMemory.into()))
    }
}

impl AsyncWrite for CountedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
