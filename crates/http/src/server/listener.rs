//! A listening socket, TCP or Unix domain. Does not know the data.

use std::io;

use socket2::SockRef;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

use crate::connection::Socket;

/// Maximum number of connections that wait in the kernel, which may allow fewer (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP listener.
    Tcp(TcpListener),
    /// A Unix domain listener; its file's permissions determine who may connect.
    #[cfg(unix)]
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl Listener {
    /// Whether only this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
            }
            #[cfg(unix)]
            Self::Unix(_) => true,
        }
    }

    /// Address or path of the socket.
    pub fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".to_owned(), |at| at.to_string()),
            #[cfg(unix)]
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                format!("unix:{}", path.map_or_else(|| "?".into(), |path| path.to_string_lossy()))
            }
        }
    }

    /// Enlarges the queue of waiting connections.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn lengthen_queue(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => SockRef::from(listener).listen(BACKLOG),
            #[cfg(unix)]
            Self::Unix(listener) => SockRef::from(listener).listen(BACKLOG),
        }
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Socket::Tcp(stream)),
            #[cfg(unix)]
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}
