//! systemd's service protocol: status reports, the watchdog, and listening sockets that systemd opened. Does
//! nothing without systemd. Does not know the service.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;

/// Maximum bytes of a status line.
const MAX_STATUS_BYTES: usize = 256;
/// Maximum number of passed sockets: for clients, for the operator, for Ollama's clients.
const MAX_SOCKETS: usize = 3;

/// Tells systemd that the service answers requests.
pub fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", line(status)));
}

/// Tells systemd that the service is shutting down.
pub fn stopping(status: &str) {
    notify(&format!("STOPPING=1\nSTATUS={}", line(status)));
}

/// Tells systemd the service's status, and that start-up may take `time` from now on.
pub fn busy(status: &str, time: Duration) {
    notify(&format!("STATUS={}\nEXTEND_TIMEOUT_USEC={}", line(status), time.as_micros()));
}

/// Tells systemd that another process is now the main process of the service.
pub fn followed_by(pid: u32) {
    notify(&format!("MAINPID={pid}"));
}

/// Notifies systemd's watchdog at half of its interval as long as `is_live` returns true. Never returns if
/// there is a watchdog; returns at once if there is none.
pub async fn feed_watchdog(is_live: impl Fn() -> bool) {
    let Some(interval) = watchdog_interval() else { return };
    let mut ticks = tokio::time::interval((interval / 2).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        if is_live() {
            notify("WATCHDOG=1");
        }
    }
}

#[cfg(unix)]
fn notify(state: &str) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Custom(state)]) {
        tracing::debug!(%error, "cannot report to systemd");
    }
}

#[cfg(unix)]
fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

#[cfg(not(unix))]
fn notify(_: &str) {}

#[cfg(not(unix))]
fn watchdog_interval() -> Option<Duration> {
    None
}

/// The first line of `status`, at most [`MAX_STATUS_BYTES`] long.
fn line(status: &str) -> &str {
    let first = status.lines().next().unwrap_or_default();
    &first[..first.floor_char_boundary(MAX_STATUS_BYTES)]
}

/// A listening socket that systemd opened.
#[derive(Debug)]
pub enum PassedListener {
    /// A TCP socket.
    Tcp(std::net::TcpListener),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

/// Passed sockets. Read once, since reading removes them from the environment.
static PASSED: LazyLock<Mutex<ListenFd>> = LazyLock::new(|| Mutex::new(ListenFd::from_env()));

/// A listening socket passed to this process (`LISTEN_FDS`), if there is one: the first is for clients, the
/// next ones for the operator and for Ollama's clients, if those are configured.
///
/// # Errors
/// When it is not a stream socket, or there are too many.
pub fn passed_listener(number: usize) -> Result<Option<PassedListener>> {
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    if passed.len() > MAX_SOCKETS {
        bail!("{} sockets were passed in LISTEN_FDS, and {MAX_SOCKETS} can be used", passed.len());
    }
    if number >= passed.len() {
        return Ok(None);
    }
    let of_network = passed.take_tcp_listener(number);
    #[cfg(unix)]
    if of_network.is_err()
        && let Ok(Some(listener)) = passed.take_unix_listener(number)
    {
        listener.set_nonblocking(true)?;
        return Ok(Some(PassedListener::Unix(listener)));
    }
    let listener = of_network.context("the socket passed in LISTEN_FDS cannot be used")?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener.map(PassedListener::Tcp))
}
