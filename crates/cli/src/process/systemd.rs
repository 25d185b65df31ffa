//! systemd's side of a service: reports of its state, the watchdog, and a listening socket that systemd opened. Does
//! nothing where there is no systemd. Does not know what the service does.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use sd_notify::NotifyState;

/// Most bytes of a status line.
const MAX_STATUS_BYTES: usize = 256;

/// Tells systemd that the service answers requests.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(line(status))]);
}

/// Tells systemd that the service is ending.
pub fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(line(status))]);
}

/// Tells systemd what the service is doing, and that this may take `time` from now on.
pub fn busy(status: &str, time: Duration) {
    let usec = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Status(line(status)), NotifyState::ExtendTimeoutUsec(usec)]);
}

/// Sends systemd's watchdog a sign of life at half of its interval for as long as `is_live` says so. Never returns where
/// there is a watchdog; returns at once where there is none.
pub async fn feed_watchdog(is_live: impl Fn() -> bool) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval((interval / 2).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        if is_live() {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot report to systemd");
    }
}

/// One line of at most [`MAX_STATUS_BYTES`].
fn line(status: &str) -> &str {
    let first = status.lines().next().unwrap_or_default();
    &first[..first.floor_char_boundary(MAX_STATUS_BYTES)]
}

/// The listening TCP socket that systemd opened for this process (`LISTEN_FDS`), if there is one.
///
/// # Errors
/// When it is no listening TCP socket, or there are several.
pub fn passed_listener() -> Result<Option<std::net::TcpListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    if passed.len() > 1 {
        bail!("{} sockets were passed in LISTEN_FDS, and one can be used", passed.len());
    }
    let listener = passed.take_tcp_listener(0).context("the socket passed in LISTEN_FDS cannot be used")?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}
