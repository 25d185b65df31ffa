//! What the protocols below hold of each response: frames of bounded size, counted until they are written. A
//! stream of HTTP/2 of which nothing is taken for too long is reset; hyper polls no body without the peer's
//! window, so the body itself could not notice. Does not know what the bytes say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::ConnectionState;
use crate::memory::{MemoryBudget, Part, Reservation};

/// Longest time that a stream may stand still while the memory for requests is pressed.
const PRESSED_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of looking at a stream's progress.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The outflow of the stream whose task this is.
    static OUTFLOW: Arc<Outflow>;
}

/// Bytes held of one response.
#[derive(Debug)]
pub(super) struct Outflow {
    memory: Arc<MemoryBudget>,
    held: Mutex<Held>,
    drained: Notify,
}

#[derive(Debug)]
struct Held {
    n_frames: usize,
    /// Time at which the first of them came or the last one before them left.
    since: Instant,
}

/// A frame of a response; dropped when it has been written or given up.
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

    /// That of the stream whose task this is, or one that nobody watches: the only response of an HTTP/1
    /// connection has its socket's deadlines.
    pub fn of_task(memory: &Arc<MemoryBudget>) -> Arc<Self> {
        OUTFLOW.try_with(Arc::clone).unwrap_or_else(|_| Self::new(memory.clone()))
    }

    /// Counts bytes of which frames are to be made.
    pub fn count(&self, n_bytes: usize) -> Reservation {
        let mut memory = self.memory.reservation(Part::Sockets);
        // They were counted as an answer until now, and what is sent is not refused any more.
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

    /// Waits until frames have been held for `timeout` and none has left.
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
    /// Budget in which held bytes count.
    pub memory: Arc<MemoryBudget>,
    /// Time with something to send and nothing taken.
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
                // Its last frame lies in h2, which has no way left to take it back.
                () = outflow.stalled(timeout) => state.end_now(),
            }
        });
    }
}
