//! The listening socket of a server: opened here, or passed by systemd. Does not know what is served.

use std::io::ErrorKind;

use anyhow::Result;
use throng_gateway::ServerConfig;
use tokio::net::TcpListener;

use crate::process::systemd;

/// Listens on the configured address, unless systemd passed a socket.
///
/// # Errors
/// When it is in use, not permitted or not of this machine: the message names the flag that changes it.
pub async fn listen(server: &ServerConfig) -> Result<TcpListener> {
    if let Some(passed) = systemd::passed_listener()? {
        let listener = TcpListener::from_std(passed)?;
        tracing::info!("the socket was passed in LISTEN_FDS; --host and --port are not used");
        return Ok(listener);
    }
    let (host, port) = (server.host.as_str(), server.port);
    TcpListener::bind((host, port)).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                "another program listens there; choose another port with --port, 0 for any free one"
            }
            ErrorKind::PermissionDenied => "choose a port above 1023 with --port",
            _ => "choose an address of this machine with --host",
        };
        anyhow::Error::new(error).context(format!("cannot listen on {host}:{port} ({hint})"))
    })
}
