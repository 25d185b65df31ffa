//! Refuses clients when the process has no descriptors left: a reserved descriptor accepts the connection,
//! to send an error that asks the client to retry. Does not know the requests.

use std::fs::File;
use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::Interest;
use tokio::time::Instant;

use super::listener::Listener;
use crate::connection::Socket;

/// Time for reading a refused client's request, so that a reset does not discard the response; also the
/// pause before the next connection.
const TAKE_IN: Duration = Duration::from_millis(50);
const TAKE_IN_BYTES: usize = 64 << 10;
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Error codes for too many open files: in the system (ENFILE), in the process (EMFILE). Equal on all Unix
/// systems.
const OUT_OF_DESCRIPTORS: [i32; 2] = [23, 24];

/// Refuses connections that cannot be served.
#[derive(Debug)]
pub(super) struct Refuser {
    /// Reserved descriptor.
    spare: Option<File>,
    /// Response to a refused client.
    response: &'static [u8],
    logged_at: Option<Instant>,
}

impl Refuser {
    /// Reserves a descriptor, for sending `response`.
    pub fn new(response: &'static [u8]) -> Self {
        Self { spare: open_spare(), response, logged_at: None }
    }

    /// Handles a failure to accept, after a pause.
    pub async fn refuse_one(&mut self, listener: &Listener, error: &io::Error) {
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.logged_at = Some(Instant::now());
            tracing::warn!(%error, "cannot accept connections");
        }
        let next_try = tokio::time::sleep(TAKE_IN);
        let is_out = error.raw_os_error().is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code));
        if is_out
            && self.spare.take().is_some()
            && let Some(Ok(stream)) = listener.accept().now_or_never()
        {
            refuse(&stream, self.response).await;
        }
        self.spare = self.spare.take().or_else(open_spare);
        next_try.await;
    }
}

/// Sends a client `response` without regard to its request, and reads its input for a moment.
pub(super) async fn refuse(stream: &Socket, response: &[u8]) {
    let _ = tokio::time::timeout(TAKE_IN, send_last(stream, response)).await;
}

async fn send_last(stream: &Socket, response: &[u8]) -> io::Result<()> {
    stream.try_write(response)?;
    stream.shutdown_write()?;
    let mut n_left = TAKE_IN_BYTES;
    let mut scrap = [0; 4096];
    while n_left > 0 {
        stream.ready(Interest::READABLE).await?;
        match stream.try_read(&mut scrap) {
            Ok(0) => return Ok(()),
            Ok(n) => n_left = n_left.saturating_sub(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(not(unix))]
fn open_spare() -> Option<File> {
    None
}
