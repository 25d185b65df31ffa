//! A client's socket that can be looked at by others while its owner reads and writes, and its options. Does not
//! know deadlines and protocols.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::config::ServerConfig;

/// How many bytes may wait unsent in the kernel: so few that a reader that has stopped is soon felt.
const UNSENT_BYTES: u32 = 16 << 10;
/// The send buffer (which the kernel doubles): unsent bytes and those that the other side has not yet confirmed. The
/// latter need room, or every acknowledgement is waited for.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Where the unsent bytes cannot be bounded alone, the whole buffer is.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SEND_BUFFER_BYTES: usize = UNSENT_BYTES as usize;

/// Sets an accepted socket's options.
///
/// # Errors
/// What the system says to one of them.
pub(super) fn tune(stream: &TcpStream, config: &ServerConfig) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(config.idle_timeout_s)))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(Duration::from_secs(config.slow_reader_timeout_s)))?;
    }
    Ok(())
}

/// The socket as its owner reads and writes it.
#[derive(Debug)]
pub(super) struct ClientSocket(pub Arc<TcpStream>);

impl ClientSocket {
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match send(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
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
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written lies with the kernel.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
