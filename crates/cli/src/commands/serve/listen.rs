//! The listening sockets of a server: opened here, or passed by systemd or by a predecessor process. Does not
//! know the protocols served.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use throng_gateway::{AccessConfig, Gateway, Listener, ServerConfig};
use tokio::net::TcpListener;

use crate::process::handover::{self, Sockets};
use crate::process::systemd::{self, PassedListener};

/// A listening socket. Its file, if it has one, is removed on drop.
#[derive(Debug)]
pub struct Listening {
    /// Address for clients: `127.0.0.1:8000`, `unix:/run/throng.sock`.
    pub place: String,
    file: Option<PathBuf>,
    /// Sockets for a successor process.
    pub sockets: Sockets,
}

impl Listening {
    /// Leaves the socket's file to the successor process.
    pub fn hand_over(&mut self) {
        self.file = None;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// Listens on the configured address, unless systemd passed a socket.
///
/// # Errors
/// When the address is in use, not permitted or not of this machine. The message names the flag that
/// changes it.
pub async fn listen(server: &ServerConfig) -> Result<(Listener, Listening)> {
    let mut file = None;
    let listener = match (systemd::passed_listener(0)?, &server.uds) {
        (Some(passed), uds) => {
            tracing::info!("the socket was passed in LISTEN_FDS: --host, --port and --uds are not used");
            // A predecessor process leaves its socket file to this process.
            file = uds.clone().filter(|_| handover::is_successor());
            adopt(passed)?
        }
        (None, None) => bind(server.host_name(), server.port).await?.into(),
        (None, Some(path)) => {
            file = Some(path.clone());
            bind_path(path)?
        }
    };
    let mut sockets = Sockets::default();
    keep(&mut sockets, &listener)?;
    let listening = Listening { place: listener.place(), file, sockets };
    Ok((listener, listening))
}

/// Adds the listener of the operator's API to the gateway, if configured.
///
/// # Errors
/// When the address is in use, not permitted or not of this machine.
pub async fn listen_for_operator(
    gateway: Gateway,
    access: &AccessConfig,
    listening: &mut Listening,
) -> Result<Gateway> {
    let Some(address) = &access.admin_listen else { return Ok(gateway) };
    let listener = match systemd::passed_listener(1)? {
        Some(passed) => adopt(passed)?,
        None => TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} (--admin-listen ADDRESS:PORT)"))?
            .into(),
    };
    keep(&mut listening.sockets, &listener)?;
    tracing::info!("the operator's API is on {}", listener.place());
    Ok(gateway.with_admin_listener(listener))
}

/// Adds a listener on the port of Ollama's clients to the gateway, if configured.
/// # Errors
/// When the port is in use or not permitted.
pub async fn listen_for_ollama(
    gateway: Gateway,
    (server, access): (&ServerConfig, &AccessConfig),
    listening: &mut Listening,
) -> Result<Gateway> {
    let Some(port) = server.ollama_port else { return Ok(gateway) };
    let number = 1 + usize::from(access.admin_listen.is_some());
    let listener = match systemd::passed_listener(number)? {
        Some(passed) => adopt(passed)?,
        None => {
            let host = server.host_name();
            let listener = TcpListener::bind((host, port)).await.with_context(|| {
                format!("cannot listen on {host}:{port}, where Ollama's clients look (--ollama=PORT)")
            })?;
            listener.into()
        }
    };
    keep(&mut listening.sockets, &listener)?;
    tracing::info!("Ollama's clients are answered on {}", listener.place());
    Ok(gateway.with_ollama_listener(listener))
}

#[cfg(unix)]
fn keep(sockets: &mut Sockets, listener: &Listener) -> Result<()> {
    match listener {
        Listener::Tcp(listener) => sockets.add(listener)?,
        Listener::Unix(listener) => sockets.add(listener)?,
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep(_: &mut Sockets, _: &Listener) -> Result<()> {
    Ok(())
}

fn adopt(passed: PassedListener) -> Result<Listener> {
    Ok(match passed {
        PassedListener::Tcp(listener) => TcpListener::from_std(listener)?.into(),
        #[cfg(unix)]
        PassedListener::Unix(listener) => tokio::net::UnixListener::from_std(listener)?.into(),
    })
}

async fn bind(host: &str, port: u16) -> Result<TcpListener> {
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

/// Listens on a path. Removes the socket of a server that has exited; any other file stays.
#[cfg(unix)]
fn bind_path(path: &Path) -> Result<Listener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::os::unix::net::UnixStream;
    use tokio::net::UnixListener;

    let place = path.display();
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!("--uds {place}: there is a file that is no socket");
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
                .with_context(|| format!("--uds {place}: cannot remove the socket of an ended server"))?,
            _ => bail!("--uds {place}: another program listens there"),
        }
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on --uds {place}"))?;
    let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
    tracing::info!("{place}: who may write to this file (mode {mode:03o}, set by the umask) can connect");
    Ok(listener.into())
}

#[cfg(not(unix))]
fn bind_path(path: &Path) -> Result<Listener> {
    bail!("--uds {}: not supported on this system", path.display())
}
