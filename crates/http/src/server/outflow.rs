//! Bytes of each response that HTTP/1 and HTTP/2 hold: frames of bounded size, counted until they are
//! written. An HTTP/2 stream whose client reads nothing for too long is reset; hyper does not poll a body
//! without the peer's window, so the body itself could not detect that. Does not know the content.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::ConnectionState;
use crate::memory::{MemoryBudget, Part, Reservation};

/// Maximum time without progress of a stream while request memory is short.
const PRESSED_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks of a stream's progress.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Outflow of the stream that the current task runs.
    static OUTFLOW: Arc<Outflow>;
}

/// Bytes of one response held for sending.
#[derive(Debug)]
pub(super) struct Outflow {
    memory: Arc<MemoryBudget>,
    held: Mutex<Held>,
    drained: Notify,
}

#[derive(Debug)]
struct Held {
    n_frames: usize,
    /// Time when the first of the held frames was added, or when the last one was written.
    since: Instant,
}

/// A frame of a response; dropped when it has been written or abandoned.
#[derive(Debug)]
pub struct HeldFrame {
    bytes: Bytes,
    outflow: Arc<Outflow>,
    _memory: Reservation,
}

impl Outflow {
    fn new(memory: Arc<MemoryBudget>) -> Arc<Self> {
        let held = Mutex::new(Held { n_frames: 0, since: Instant::now() });
        Arc::new(Self { memory, held, drained: Notify::new() })
    }

    /// The outflow of the current task's stream. Outside of a stream, a new one without a deadline: the
    /// only response of an HTTP/1 connection is covered by its socket's deadlines.
    pub fn of_task(memory: &Arc<MemoryBudget>) -> Arc<Self> {
        OUTFLOW.try_with(Arc::clone).unwrap_or_else(|_| Self::new(memory.clone()))
    }

    /// Counts bytes that will become frames.
    pub fn count(&self, n_bytes: usize) -> Reservation {
        let mut memory = self.memory.reservation(Part::Sockets);
        // They were counted as an answer until now, and bytes to be sent are not refused any more.
        memory.add_always(n_bytes);
        memory
    }

    /// Counts `bytes` until they have been written.
    pub fn hold(self: &Arc<Self>, bytes: Bytes) -> HeldFrame {
        let memory = self.count(bytes.len());
        let mut held = self.held();
        if held.n_frames == 0 {
            held.since = Instant::now();
        }
        held.n_frames += 1;
        HeldFrame { bytes, outflow: self.clone(), _memory: memory }
    }

    /// Waits until frames have been held for `timeout` without any being written.
    async fn stalled(&self, timeout: Duration) {
        loop {
            let timeout = if self.memory.is_pressed() { timeout.min(PRESSED_TIMEOUT) } else { timeout };
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

    /// Waits until no frames are held.
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

/// Runs each stream of an HTTP/2 connection in a separate task, with a deadline for its progress.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor {
    /// State of the connection.
    pub state: Arc<ConnectionState>,
    /// Budget that held bytes count against.
    pub memory: Arc<MemoryBudget>,
    /// Maximum time in which the client reads none of the bytes to send.
    pub timeout: Duration,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self { state, memory, timeout } = self.clone();
        tokio::spawn(async move {
            let outflow = Outflow::new(memory);
            tokio::select! {
                _ = OUTFLOW.scope(outflow.clone(), stream) => {}
                // Dropping a stream's task resets the stream.
                () = outflow.stalled(timeout) => return,
            }
            tokio::select! {
                () = outflow.drained() => {}
                // h2 cannot take back the last frame, so the whole connection ends.
                () = outflow.stalled(timeout) => state.end_now(),
            }
        });
    }
}
