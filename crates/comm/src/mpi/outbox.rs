//! Messages to one rank that wait until it receives them, so that their sender need not. Does not know their
//! meaning.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::exchange::Exchange;
use super::members::Members;
use crate::{CommError, Deadline, Loss};

/// Bytes that wait at most; a longer message waits alone.
const ROOM_BYTES: usize = 4 << 20;
/// Interval of looks at the deadline.
const LOOK: Duration = Duration::from_millis(50);

/// The messages to one rank, sent by a thread of its own.
#[derive(Debug)]
pub(super) struct Outbox {
    rank: usize,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Vec<u8>>,
    /// Bytes of the messages that wait and of the one that is being sent.
    n_bytes: usize,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Outbox {
    /// # Errors
    /// When the system refuses a thread.
    pub(super) fn open(rank: usize, tag: i32, members: &Arc<Members>) -> Result<Self, CommError> {
        let queue = Arc::<Queue>::default();
        let (from, members) = (Arc::clone(&queue), Arc::clone(members));
        let run = move || {
            while let Some(message) = next(&from) {
                let sent = members.active(|| {
                    let exchange = Exchange { sends: vec![(rank, &*message)], receives: Vec::new() };
                    exchange.run(tag, &members, Deadline::NEVER);
                    Ok(())
                });
                let mut state = from.lock();
                state.n_bytes -= message.len();
                state.is_closed |= sent.is_err();
                from.changed.notify_all();
            }
        };
        std::thread::Builder::new().name(format!("throng-to-{rank}")).spawn(run)?;
        Ok(Self { rank, queue })
    }

    /// Whether all messages have been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().n_bytes == 0
    }

    /// Adds a message, once there is room for it.
    ///
    /// # Errors
    /// When the deadline passes, or no message is sent any more.
    pub(super) fn push(&self, message: &[u8], deadline: Deadline) -> Result<(), CommError> {
        let mut state = self.queue.lock();
        while state.n_bytes > 0 && state.n_bytes + message.len() > ROOM_BYTES && !state.is_closed {
            if deadline.has_passed() {
                return Err(CommError::PeerLost { rank: self.rank, how: Loss::TimedOut });
            }
            state = self.queue.wait(state);
        }
        if state.is_closed {
            return Err(CommError::PeerLost { rank: self.rank, how: Loss::Ended });
        }
        state.n_bytes += message.len();
        state.messages.push_back(message.to_vec());
        self.queue.changed.notify_all();
        Ok(())
    }
}

/// The next message, once there is one; `None` when there will be no further one.
fn next(queue: &Queue) -> Option<Vec<u8>> {
    let mut state = queue.lock();
    loop {
        if let Some(message) = state.messages.pop_front() {
            return Some(message);
        }
        if state.is_closed {
            return None;
        }
        state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}
