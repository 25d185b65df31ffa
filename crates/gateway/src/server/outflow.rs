//! What the protocols below hold of each response: frames of bounded size, counted until they are written. A stream
//! of HTTP/2 of which nothing is taken for too long is reset; hyper polls no body without the peer's window, so the
//! body itself could not notice. Refuses to know what the bytes say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::ConnectionState;

/// Most bytes that a response gives at once: h2 holds a frame whole until the peer's window has room for it.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 10;
/// While more than this is held over all connections, a stream may stand still only for [`PRESSED_TIMEOUT`].
const HELD_BYTES: usize = 64 << 20;
const PRESSED_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a stream's progress is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Of the stream whose task this is.
    static OUTFLOW: Arc<Outflow>;
}

/// What is held of one response.
#[derive(Debug)]
pub(super) struct Outflow {
    /// Over all connections.
    all_bytes: Arc<AtomicUsize>,
    held: Mutex<Held>,
    drained: Notify,
}

#[derive(Debug)]
struct Held {
    n_frames: usize,
    /// When the first of them came or the last one before them left.
    since: Instant,
}

/// A frame of a response; dropped when it has been written or given up.
#[derive(Debug)]
pub(crate) struct HeldFrame {
    bytes: Bytes,
    n_bytes: usize,
    outflow: Arc<Outflow>,
}

impl Outflow {
    fn new(all_bytes: Arc<AtomicUsize>) -> Arc<Self> {
        let held = Mutex::new(Held { n_frames: 0, since: Instant::now() });
        Arc::new(Self { all_bytes, held, drained: Notify::new() })
    }

    /// That of the stream whose task this is, or one that nobody watches: the only response of an HTTP/1 connection
    /// has its socket's deadlines.
    pub fn of_task(all_bytes: &Arc<AtomicUsize>) -> Arc<Self> {
        OUTFLOW.try_with(Arc::clone).unwrap_or_else(|_| Self::new(all_bytes.clone()))
    }

    /// Counts `bytes` until they have been written.
    pub fn hold(self: &Arc<Self>, bytes: Bytes) -> HeldFrame {
        let n_bytes = bytes.len();
        self.all_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        let mut held = self.held();
        if held.n_frames == 0 {
            held.since = Instant::now();
        }
        held.n_frames += 1;
        HeldFrame { bytes, n_bytes, outflow: self.clone() }
    }

    /// Waits until frames have been held for `timeout` and none has left.
    async fn stalled(&self, timeout: Duration) {
        loop {
            let is_pressed = self.all_bytes.load(Ordering::Relaxed) > HELD_BYTES;
            let timeout = if is_pressed { timeout.min(PRESSED_TIMEOUT) } else { timeout };
            let stands_for = {
                let held = self.held();
                if held.n_frames == 0 { Duration::ZERO } else { held.since.elapsed() }
            };
            if stands_for > timeout {
                return;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Waits until nothing is held.
    async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.held().n_frames == 0 {
                return;
            }
            drained.await;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldFrame {
    fn drop(&mut self) {
        self.outflow.all_bytes.fetch_sub(self.n_bytes, Ordering::Relaxed);
        let mut held = self.outflow.held();
        held.n_frames -= 1;
        held.since = Instant::now();
        if held.n_frames == 0 {
            self.outflow.drained.notify_waiters();
        }
    }
}

impl Buf for HeldFrame {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, n: usize) {
        self.bytes.advance(n);
    }
}

/// Runs the streams of one HTTP/2 connection, each in a task of its own, under a deadline for its progress.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor {
    /// The connection.
    pub state: Arc<ConnectionState>,
    /// Bytes held over all connections.
    pub all_bytes: Arc<AtomicUsize>,
    /// With something to send and nothing taken.
    pub timeout: Duration,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self { state, all_bytes, timeout } = self.clone();
        tokio::spawn(async move {
            let outflow = Outflow::new(all_bytes);
            tokio::select! {
                _ = OUTFLOW.scope(outflow.clone(), stream) => {}
                // Dropping a stream's task resets the stream.
                () = outflow.stalled(timeout) => return,
            }
            tokio::select! {
                () = outflow.drained() => {}
                // Its last frame lies in h2, which has no way left to take it back.
                () = outflow.stalled(timeout) => state.end_now(),
            }
        });
    }
}
