//! A client's socket, encrypted or not, that other tasks can observe while its owner reads and writes, and
//! its options. Does not know deadlines and protocols.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::limits::Timeouts;
use crate::connection::Socket;

/// Maximum unsent bytes in the kernel: small enough that a stalled reader is noticed soon.
const UNSENT_BYTES: u32 = 16 << 10;
/// Bytes of the send buffer (which the kernel doubles), for unsent and unacknowledged bytes. Unacknowledged
/// bytes need room, or sending would wait for every acknowledgement.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Bytes of the whole send buffer if unsent bytes cannot be limited separately.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SEND_BUFFER_BYTES: usize = UNSENT_BYTES as usize;

/// Sets the options of an accepted socket.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn tune(socket: &Socket, timeouts: &Timeouts) -> io::Result<()> {
    let stream = match socket {
        Socket::Tcp(stream) => stream,
        #[cfg(unix)]
        Socket::Unix(stream) => return SockRef::from(stream).set_send_buffer_size(SEND_BUFFER_BYTES),
    };
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(timeouts.idle))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(timeouts.write))?;
    }
    Ok(())
}

/// The owner's view of the socket, for reading and writing.
#[derive(Debug)]
pub(super) struct ClientSocket {
    /// The socket, shared with its observers.
    pub socket: Arc<Socket>,
    n_sent: usize,
}

impl ClientSocket {
    /// Wraps an accepted socket.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self { socket, n_sent: 0 }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl Fn(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            match send(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    self.n_sent += *sent.as_ref().unwrap_or(&0);
                    return Poll::Ready(sent);
                }
            }
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read_buf(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: written bytes are already in the kernel.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown_write())
    }
}

/// A client's decrypted byte stream, whether it is encrypted on the wire or not.
#[derive(Debug)]
pub(super) enum ClientStream {
    /// An unencrypted stream.
    Plain(ClientSocket),
    /// A TLS stream.
    Tls(Box<TlsStream<ClientSocket>>),
}

/// Calls the same method on either kind.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            ClientStream::Plain($inner) => $call,
            ClientStream::Tls($inner) => $call,
        }
    };
}

impl ClientStream {
    /// Number of bytes that the kernel has accepted so far.
    pub fn n_sent(&self) -> usize {
        match self {
            Self::Plain(socket) => socket.n_sent,
            Self::Tls(stream) => stream.get_ref().0.n_sent,
        }
    }

    /// Whether the bytes are encrypted on the wire.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends a few last bytes if the kernel accepts them at once.
    pub fn send_now(&mut self, bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self).poll_write(&mut cx, bytes);
        let _ = Pin::new(self).poll_flush(&mut cx);
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut *self, inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(&mut *self, inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut *self, inner => Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        either!(self, inner => inner.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}
