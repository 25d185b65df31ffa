//! A client's socket with deadlines: for the first byte, for a request's head, for idle connections and for
//! clients that do not read. Does not know the meaning of the bytes, except for the first three of an
//! HTTP/2 connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::h2_flood::{FloodGauge, goaway};
use super::limits::Timeouts;
use super::socket::ClientStream;
use crate::connection::{ConnectionState, HALF_SENT_GRACE};

/// Interval of checks of a held-back end of input.
const HALF_CLOSE_RECHECK: Duration = Duration::from_millis(100);
/// Time after an end of input in which a request's body may be complete without its handler having read it
/// all. Such an end is not inside of the body.
const END_IN_BODY_GRACE: Duration = Duration::from_millis(100);
/// Bytes (or all pending ones, if fewer) that the client must read within a write deadline: a client that
/// reads a single byte now and then blocks its response like one that reads nothing.
const MIN_WRITE_PROGRESS: usize = 16 << 10;
/// Maximum time, and bytes, for reading a refused client's input before closing.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 << 20;

/// A client's socket with deadlines.
#[derive(Debug)]
pub(crate) struct ClientIo {
    stream: ClientStream,
    state: Arc<ConnectionState>,
    timeouts: Timeouts,
    read_timer: Pin<Box<Sleep>>,
    write_timer: Pin<Box<Sleep>>,
    write_blocked: bool,
    /// Bytes accepted by the kernel when it last accepted no more.
    n_sent_before: usize,
    first_bytes: [u8; 3],
    n_first_bytes: usize,
    n_started_seen: usize,
    head_since: Option<Instant>,
    idle_since: Instant,
    was_busy: bool,
    flood: FloodGauge,
    is_flooded: bool,
    /// Number of requests so far, and the time, when the end of input was found.
    ended: Option<(usize, Instant)>,
    linger: Option<Linger>,
}

#[derive(Debug)]
struct Linger {
    write_closed: bool,
    bytes_left: usize,
    timer: Pin<Box<Sleep>>,
}

impl ClientIo {
    /// Wraps an accepted socket.
    pub fn new(stream: ClientStream, state: Arc<ConnectionState>, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        Self {
            stream,
            state,
            timeouts,
            read_timer: Box::pin(tokio::time::sleep_until(now + timeouts.header)),
            write_timer: Box::pin(tokio::time::sleep_until(now)),
            write_blocked: false,
            n_sent_before: 0,
            first_bytes: [0; 3],
            n_first_bytes: 0,
            n_started_seen: 0,
            head_since: None,
            idle_since: now,
            was_busy: false,
            flood: FloodGauge::new(now),
            is_flooded: false,
            ended: None,
            linger: None,
        }
    }

    fn is_h2(&self) -> bool {
        self.n_first_bytes == 3 && &self.first_bytes == b"PRI"
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let now = Instant::now();
        let room = &mut self.first_bytes[self.n_first_bytes..];
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.n_first_bytes += n;
        // Must run first: a request that has started since the last call clears `head_since`.
        self.note_started();
        if self.state.n_in_flight() == 0 && !self.is_h2() && !self.state.is_upgraded() {
            self.head_since.get_or_insert(now);
            self.state.set_reading_head(true);
        }
        if b"PRI".starts_with(&self.first_bytes[..self.n_first_bytes])
            && self.flood.is_flooded_by(bytes, self.state.n_frames_given(), now)
        {
            self.end_flooded();
        }
    }

    /// Ends the input. Sends GOAWAY, unless a partly written frame prevents that.
    fn end_flooded(&mut self) {
        self.is_flooded = true;
        self.state.set_linger();
        if !self.state.presence.is_mid_write() {
            self.stream.send_now(&goaway(self.flood.last_stream()));
        }
    }

    fn note_started(&mut self) {
        let n_started = self.state.n_started();
        if n_started != self.n_started_seen {
            self.n_started_seen = n_started;
            self.head_since = None;
            self.state.set_reading_head(false);
            self.was_busy = true;
        }
    }

    /// Deadline of a read without data.
    fn read_deadline(&mut self) -> Option<Instant> {
        self.note_started();
        // The protocol of an upgraded connection has deadlines of its own.
        if self.state.n_in_flight() > 0 || self.state.is_upgraded() {
            self.was_busy = true;
            return None;
        }
        if std::mem::take(&mut self.was_busy) {
            self.idle_since = Instant::now();
        }
        Some(match self.head_since {
            Some(since) => {
                let limit = since + self.timeouts.header;
                self.state.ending().map_or(limit, |ending| limit.min(ending + HALF_SENT_GRACE))
            }
            None if self.n_started_seen == 0 => self.idle_since + self.timeouts.header,
            None => self.idle_since + self.timeouts.idle,
        })
    }

    fn poll_read_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(deadline) = self.read_deadline() else { return Poll::Pending };
        if self.read_timer.deadline() != deadline {
            self.read_timer.as_mut().reset(deadline);
        }
        ready!(self.read_timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether to hold back an end of input, because the client may be waiting for its response. Probing
    /// detects whether the client has disconnected.
    fn holds_end(&mut self) -> bool {
        if self.state.n_in_flight() == 0 || self.is_h2() || self.stream.is_encrypted() {
            return false;
        }
        let n_started = self.state.n_started();
        let ended = self.ended.filter(|ended| ended.0 == n_started);
        let (_, since) = *self.ended.insert(ended.unwrap_or_else(|| (n_started, Instant::now())));
        !self.state.is_reading_body() || since.elapsed() < END_IN_BODY_GRACE
    }

    fn wake_after(&mut self, delay: Duration, cx: &mut Context<'_>) {
        self.read_timer.as_mut().reset(Instant::now() + delay);
        // Polled only to register the waker.
        let _ = self.read_timer.as_mut().poll(cx);
    }

    fn check_write<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let n_sent = self.stream.n_sent();
        self.write_blocked &= n_sent - self.n_sent_before < MIN_WRITE_PROGRESS;
        if result.is_ready() {
            return result;
        }
        if !self.write_blocked {
            self.write_blocked = true;
            self.n_sent_before = n_sent;
            self.write_timer.as_mut().reset(Instant::now() + self.timeouts.write);
        }
        ready!(self.write_timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_flooded {
            return Poll::Ready(Ok(()));
        }
        let filled = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Pending => this.poll_read_deadline(cx),
            Poll::Ready(Ok(())) if buf.filled().len() > filled => {
                this.note_read(&buf.filled()[filled..]);
                if this.is_flooded {
                    buf.set_filled(filled);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(())) if buf.remaining() > 0 && this.holds_end() => {
                this.wake_after(HALF_CLOSE_RECHECK, cx);
                Poll::Pending
            }
            done => done,
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(n) = self.state.presence.take_sent_ahead(buf)? {
            return Poll::Ready(Ok(n));
        }
        self.state.presence.set_mid_write(true);
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_write(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty());
        if let Some(n) = first.map_or(Ok(None), |first| self.state.presence.take_sent_ahead(first))? {
            return Poll::Ready(Ok(n));
        }
        self.state.presence.set_mid_write(true);
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_write(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Flushed only when everything has been written, though encrypted bytes may still wait before the
        // kernel.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.write_blocked = false;
            self.state.presence.set_mid_write(false);
        }
        self.check_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.state.lingers() {
            let closed = Pin::new(&mut this.stream).poll_shutdown(cx);
            return this.check_write(cx, closed);
        }
        let linger = this.linger.get_or_insert_with(|| Linger {
            write_closed: false,
            bytes_left: LINGER_BYTES,
            timer: Box::pin(tokio::time::sleep(LINGER)),
        });
        if !linger.write_closed {
            let closed = Pin::new(&mut this.stream).poll_shutdown(cx);
            if closed.is_pending() {
                return linger.timer.as_mut().poll(cx).map(Ok);
            }
            ready!(closed)?;
            linger.write_closed = true;
        }
        let mut scrap = [0; 8192];
        loop {
            let mut buf = ReadBuf::new(&mut scrap);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buf) {
                Poll::Pending => return linger.timer.as_mut().poll(cx).map(Ok),
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {}
            }
            let n = buf.filled().len();
            if n == 0 || n >= linger.bytes_left {
                return Poll::Ready(Ok(()));
            }
            linger.bytes_left -= n;
        }
    }
}
