//! The threads that read and write a store's file, so that no step waits for a disk. Reads come before
//! writes. Both are bounded by the core, which orders them. Does not know what is worth keeping.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_core::engine::Input;
use throng_core::scheduling::batch::StoreSlot;
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use throng_core::scheduling::block_store::StoreOrder;
use tracing::warn;

use super::slab::Slab;
use crate::message::{Inbox, Message};

/// Threads of a store: as many reads and writes are under way at once.
const N_THREADS: usize = 2;

/// Buffers of blocks that are kept for reuse.
const MAX_SPARE_BUFFERS: usize = 16;

/// A store's file with its threads and what they read. The threads end when the last one is dropped.
#[derive(Debug, Clone)]
pub struct StoreThreads {
    shared: Arc<Shared>,
    _stop: Arc<StopOnDrop>,
}

#[derive(Debug)]
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.has_jobs.notify_all();
    }
}

#[derive(Debug)]
struct Shared {
    slab: Slab,
    state: Mutex<State>,
    has_jobs: Condvar,
    inbox: Inbox,
}

#[derive(Debug, Default)]
struct State {
    reads: VecDeque<(StoreSlot, BlockHash)>,
    writes: VecDeque<Write>,
    /// Bytes that were read and not taken.
    read: HashMap<StoreSlot, Vec<u8>>,
    spare: Vec<Vec<u8>>,
    is_closing: bool,
    /// Whether the last write failed, which was told.
    is_failing: bool,
}

#[derive(Debug)]
struct Write {
    slot: StoreSlot,
    content: BlockContent,
    bytes: Vec<u8>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreThreads {
    /// Starts the threads of a file, which report to `inbox`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(slab: Slab, inbox: Inbox) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { slab, state: Mutex::default(), has_jobs: Condvar::new(), inbox });
        let stop = Arc::new(StopOnDrop(Arc::clone(&shared)));
        for number in 0..N_THREADS {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("throng-store-{number}"));
            thread.spawn(move || run(&shared))?;
        }
        Ok(Self { shared, _stop: stop })
    }

    /// Carries out an order of the core.
    pub fn carry_out(&self, order: StoreOrder) {
        match order {
            StoreOrder::Read(slot, hash) => {
                self.shared.lock().reads.push_back((slot, hash));
                self.shared.has_jobs.notify_one();
            }
            StoreOrder::Drop(slot) => drop(self.take_read(slot)),
        }
    }

    /// Writes a block to a slot.
    pub fn write(&self, slot: StoreSlot, content: BlockContent, bytes: Vec<u8>) {
        self.shared.lock().writes.push_back(Write { slot, content, bytes });
        self.shared.has_jobs.notify_one();
    }

    /// Reports that a block could not be written.
    pub fn fail_write(&self, slot: StoreSlot) {
        let input = Input::BlockWritten { slot, succeeded: false };
        // An error means that the engine has ended.
        let _ = self.shared.inbox.send(Message::Input(input));
    }

    /// Takes what was read of a slot.
    pub fn take_read(&self, slot: StoreSlot) -> Option<Vec<u8>> {
        self.shared.lock().read.remove(&slot)
    }

    /// Gives a buffer back.
    pub fn reuse(&self, buffer: Vec<u8>) {
        self.shared.lock().reuse(buffer);
    }

    /// Drops all that was read and not taken: the executor that was to take it is gone.
    pub fn forget_read(&self) {
        self.shared.lock().read.clear();
    }
}

impl State {
    fn reuse(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE_BUFFERS {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    fn spare_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }
}

fn run(shared: &Shared) {
    loop {
        let mut state = shared.lock();
        let input = if let Some((slot, hash)) = state.reads.pop_front() {
            let mut bytes = state.spare_buffer();
            drop(state);
            read(shared, slot, &hash, &mut bytes)
        } else if let Some(Write { slot, content, bytes }) = state.writes.pop_front() {
            drop(state);
            let succeeded = write(shared, slot, &content, &bytes);
            shared.lock().reuse(bytes);
            Input::BlockWritten { slot, succeeded }
        } else if state.is_closing {
            return;
        } else {
            drop(shared.has_jobs.wait(state).unwrap_or_else(PoisonError::into_inner));
            continue;
        };
        if shared.inbox.send(Message::Input(input)).is_err() {
            return;
        }
    }
}

fn read(shared: &Shared, slot: StoreSlot, hash: &BlockHash, bytes: &mut Vec<u8>) -> Input {
    let result = shared.slab.read(slot, hash, bytes);
    let succeeded = match result {
        Ok(()) => {
            shared.lock().read.insert(slot, std::mem::take(bytes));
            true
        }
        Err(error) => {
            warn!(slot = slot.0, %error, "a stored block cannot be read; it is computed again");
            false
        }
    };
    Input::BlockRead { slot, succeeded }
}

fn write(shared: &Shared, slot: StoreSlot, content: &BlockContent, bytes: &[u8]) -> bool {
    let result = shared.slab.write(slot, content, bytes);
    let was_failing = std::mem::replace(&mut shared.lock().is_failing, result.is_err());
    if let Err(error) = &result
        && !was_failing
    {
        let path = shared.slab.path().display();
        warn!(%error, "blocks cannot be written to {path}; they stay in memory only");
    }
    result.is_ok()
}
