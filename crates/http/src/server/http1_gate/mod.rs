//! A gate between a client's socket and hyper. It passes only strictly well-formed HTTP/1, and heads only as
//! a whole, so that hyper and this server always agree where a request ends, and hyper never responds by
//! itself. In place of a refused request, hyper gets a stand-in request, whose turn comes after the responses
//! to all earlier requests; [`ConnectionState::refusal`] has the reason for the response. HTTP/2 passes
//! unchanged. Does not know routes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http1_chunks::{BrokenAt, ChunkScan};
use super::http1_head::{BodyFraming, HeadScan};
use crate::connection::ConnectionState;
use crate::refusal::{Refusal, Violation};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Request that hyper reads in place of a refused one.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const READ_BYTES: usize = 8 << 10;

/// A client's socket that yields only well-formed HTTP.
#[derive(Debug)]
pub(super) struct Http1Gate<T> {
    inner: T,
    state: Arc<ConnectionState>,
    needs_credentials: bool,
    stage: Stage,
    /// Bytes read but not passed on: at most a head and one read.
    held: Vec<u8>,
    /// Number of bytes of `held` already passed on, and number of checked bytes.
    n_given: usize,
    n_checked: usize,
    n_heads: usize,
}

/// HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http1,
    Http2,
}

/// Part of a request that the next byte belongs to.
#[derive(Debug)]
enum Stage {
    /// The start of the connection, which may be HTTP/2.
    Preface,
    Head(HeadScan),
    Length(u64),
    Chunks(ChunkScan),
    Http2,
    /// No bytes until the response is decided: the request asks for an upgrade to WebSocket.
    Upgrade,
    /// Bytes of another protocol: the connection was upgraded.
    Upgraded,
    /// None: the request with this number was refused.
    Refused(usize),
    /// None: the current body was invalid.
    BrokenBody,
}

impl<T> Http1Gate<T> {
    /// Creates a gate over `inner`. `needs_credentials`: whether requests must have credentials.
    pub fn new(inner: T, state: Arc<ConnectionState>, needs_credentials: bool) -> Self {
        let stage = Stage::Preface;
        Self {
            inner,
            state,
            needs_credentials,
            stage,
            held: Vec::new(),
            n_given: 0,
            n_checked: 0,
            n_heads: 0,
        }
    }

    /// Checks the held bytes as far as possible.
    fn check(&mut self) {
        while self.n_checked < self.held.len() {
            let bytes = &self.held[self.n_checked..];
            match &mut self.stage {
                Stage::Preface if bytes.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(bytes) => {
                    return;
                }
                Stage::Preface if bytes.starts_with(HTTP2_PREFACE) => self.stage = Stage::Http2,
                Stage::Preface => self.stage = Stage::Head(HeadScan::default()),
                Stage::Head(_) => {
                    if !self.check_head() {
                        return;
                    }
                }
                Stage::Length(_) | Stage::Chunks(_) => {
                    let (n_good, broken) = self.stage.take_body(bytes);
                    self.n_checked += n_good;
                    if let Some(violation) = broken {
                        self.break_body(violation);
                    }
                }
                Stage::Upgrade => return,
                Stage::Http2 | Stage::Upgraded => self.n_checked = self.held.len(),
                Stage::Refused(_) | Stage::BrokenBody => self.held.truncate(self.n_checked),
            }
        }
    }

    /// Checks a head. Returns whether it is complete or refused.
    fn check_head(&mut self) -> bool {
        let Stage::Head(scan) = &mut self.stage else { return true };
        // Empty lines before a request line are permitted and ignored.
        while self.held[self.n_checked..].starts_with(b"\r\n") && scan.is_untouched() {
            self.held.drain(self.n_checked..self.n_checked + 2);
        }
        let bytes = &self.held[self.n_checked..];
        if bytes.is_empty() || (bytes == b"\r" && scan.is_untouched()) {
            return false;
        }
        match scan.advance(bytes) {
            Ok(None) => false,
            Ok(Some(end)) => {
                self.n_checked += end.n_bytes;
                self.n_heads += 1;
                self.stage = match end.body {
                    BodyFraming::Length(0) if end.asks_for_websocket => {
                        self.state.await_upgrade();
                        Stage::Upgrade
                    }
                    BodyFraming::Length(0) => Stage::Head(HeadScan::default()),
                    BodyFraming::Length(n_left) => Stage::Length(n_left),
                    BodyFraming::Chunked => Stage::Chunks(ChunkScan::default()),
                };
                true
            }
            Err(violation) => {
                self.refuse(self.refusal_of(violation));
                true
            }
        }
    }

    fn refusal_of(&self, violation: Violation) -> Refusal {
        match violation {
            Violation::CredentialsTooLarge if !self.needs_credentials => Violation::FieldsTooLarge.into(),
            violation => violation.into(),
        }
    }

    /// Replaces the refused head by a stand-in.
    fn refuse(&mut self, refusal: Refusal) {
        tracing::debug!(error = %refusal, "refused a request's head");
        self.n_heads += 1;
        self.state.refuse(self.n_heads, refusal);
        self.held.truncate(self.n_checked);
        self.held.extend_from_slice(STAND_IN);
        self.n_checked = self.held.len();
        self.stage = Stage::Refused(self.n_heads);
    }

    fn break_body(&mut self, violation: Violation) {
        let refusal = self.refusal_of(violation);
        tracing::debug!(error = %refusal, "refused a request's body");
        self.state.refuse(self.n_heads, refusal);
        self.stage = Stage::BrokenBody;
    }

    /// Passes checked bytes on. Returns whether there were any.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let n = (self.n_checked - self.n_given).min(buf.remaining());
        buf.put_slice(&self.held[self.n_given..self.n_given + n]);
        self.n_given += n;
        if self.n_given == self.held.len() {
            // Frees the buffer, so that idle connections hold none.
            self.held = Vec::new();
            (self.n_given, self.n_checked) = (0, 0);
        }
        n > 0
    }
}

impl Stage {
    /// Consumes the bytes of the body. Returns the number of valid ones, and the violation after them.
    fn take_body(&mut self, bytes: &[u8]) -> (usize, Option<Violation>) {
        let (n, is_over) = match self {
            Self::Length(n_left) => {
                let n = bytes.len().min(usize::try_from(*n_left).unwrap_or(usize::MAX));
                *n_left -= n as u64;
                (n, *n_left == 0)
            }
            Self::Chunks(scan) => match scan.advance(bytes) {
                Ok(n) => (n, scan.is_over()),
                Err(BrokenAt { n_good, violation }) => return (n_good, Some(violation)),
            },
            _ => (0, false),
        };
        if is_over {
            *self = Self::Head(HeadScan::default());
        }
        (n, None)
    }
}

impl<T: AsyncRead + Unpin> Http1Gate<T> {
    /// Determines the client's HTTP version: reads and holds as many bytes as necessary. HTTP/1 if the
    /// input ends before.
    ///
    /// # Errors
    /// Errors of the socket, including its deadlines.
    pub async fn version(&mut self) -> io::Result<HttpVersion> {
        while matches!(self.stage, Stage::Preface) {
            if !poll_fn(|cx| self.poll_fill(cx)).await? {
                break;
            }
        }
        Ok(if matches!(self.stage, Stage::Http2) { HttpVersion::Http2 } else { HttpVersion::Http1 })
    }

    /// Reads more of a head. Ready with true when there are new bytes to check, and with false at the end
    /// of input.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        self.held.drain(..self.n_given);
        (self.n_given, self.n_checked) = (0, self.n_checked - self.n_given);
        let mut scratch = [0; READ_BYTES];
        let mut buf = ReadBuf::new(&mut scratch);
        match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buf)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !self.held.is_empty() => {
                self.refuse(match self.state.ending() {
                    Some(_) => Refusal::ShuttingDown,
                    None => Refusal::HeadTimeout,
                });
                return Poll::Ready(Ok(true));
            }
            result => result?,
        }
        self.held.extend_from_slice(buf.filled());
        self.check();
        Poll::Ready(Ok(!buf.filled().is_empty()))
    }

    /// Reads part of a body directly into the caller's buffer, and holds bytes after the body.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let new = &buf.filled()[n_before..];
        let (n_good, broken) = self.stage.take_body(new);
        if let Some(violation) = broken {
            self.break_body(violation);
        } else {
            self.held.extend_from_slice(&new[n_good..]);
            self.check();
        }
        let is_end = new.is_empty();
        buf.set_filled(n_before + n_good);
        // An empty read would signal the end of input.
        if n_good > 0 || is_end { Poll::Ready(Ok(())) } else { Poll::Ready(Err(broken_body())) }
    }

    /// Passes no bytes on after a refusal. While earlier requests are running, still detects that the client
    /// disconnects.
    fn poll_refused(&mut self, number: usize, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let n_unstarted = number.saturating_sub(self.state.n_started());
        if n_unstarted == 0 || (n_unstarted == 1 && self.state.n_in_flight() == 0) {
            // The refusal is being answered; writing has a deadline of its own.
            return Poll::Pending;
        }
        let mut scratch = [0; READ_BYTES];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn broken_body() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the framing of the request's body is broken")
}

impl<T: AsyncRead + Unpin> AsyncRead for Http1Gate<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.give(buf) || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match this.stage {
                Stage::Http2 | Stage::Upgraded => return Pin::new(&mut this.inner).poll_read(cx, buf),
                // A client sends nothing until the response has come. After any but an upgrade the connection closes.
                Stage::Upgrade if !this.state.is_upgraded() => return Poll::Pending,
                Stage::Upgrade => {
                    this.stage = Stage::Upgraded;
                    this.check();
                }
                Stage::Length(_) | Stage::Chunks(_) => return this.poll_body(cx, buf),
                Stage::Refused(number) => return this.poll_refused(number, cx),
                Stage::BrokenBody => return Poll::Ready(Err(broken_body())),
                Stage::Preface | Stage::Head(_) => {
                    if !ready!(this.poll_fill(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Http1Gate<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

mod differential;
