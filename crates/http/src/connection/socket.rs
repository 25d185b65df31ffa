//! An accepted socket of either kind, for all tasks that share it. Does not know the data sent.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use socket2::SockRef;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// An accepted socket.
#[derive(Debug)]
pub(crate) enum Socket {
    /// A TCP socket.
    Tcp(TcpStream),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Calls the same method on either kind.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            #[cfg(unix)]
            Socket::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// Client for the log: an IP address, or `unix` for a Unix domain socket.
    pub fn client(&self) -> String {
        match self {
            Self::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => address.ip().to_canonical().to_string(),
                Err(_) => "gone".to_owned(),
            },
            #[cfg(unix)]
            Self::Unix(_) => "unix".to_owned(),
        }
    }

    /// Behaves as [`TcpStream::poll_read_ready`].
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    /// Behaves as [`TcpStream::poll_write_ready`].
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(cx))
    }

    /// Behaves as [`TcpStream::ready`].
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        either!(self, stream => stream.ready(interest).await)
    }

    /// Behaves as [`TcpStream::try_read`].
    pub fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(bytes))
    }

    /// Behaves as [`TcpStream::try_read_buf`].
    pub fn try_read_buf<B: bytes::BufMut>(&self, bytes: &mut B) -> io::Result<usize> {
        either!(self, stream => stream.try_read_buf(bytes))
    }

    /// Behaves as [`TcpStream::try_write`].
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    /// Behaves as [`TcpStream::try_write_vectored`].
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.try_write_vectored(slices))
    }

    /// Whether the client has closed the whole socket, as far as known. For TCP, only a probe reveals it.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(unix)]
            Self::Unix(stream) => {
                let ready = stream.ready(Interest::WRITABLE).now_or_never();
                ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_write_closed()))
            }
        }
    }

    /// Closes the sending side.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn shutdown_write(&self) -> io::Result<()> {
        either!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write))
    }
}
