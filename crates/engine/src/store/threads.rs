//! The threads that read and write a store's file, so that no step waits for a disk, and the blocks on their
//! way from and to other engines. Reads come before writes. All are bounded by the core, which orders them.
//! Does not know what is worth keeping.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_core::engine::Input;
use throng_core::request::PeerId;
use throng_core::scheduling::batch::{ExportId, StoreSlot};
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use throng_core::scheduling::block_store::StoreOrder;
use tracing::warn;

use super::exports::Exports;
use super::pull::{Landing, Pull, PullBlocks};
use super::slab::Slab;
use crate::message::{Inbox, Message};

/// Threads of a store: as many reads and writes are under way at once.
const N_THREADS: usize = 2;

/// Number of buffers of blocks that are kept for reuse.
const MAX_SPARE_BUFFERS: usize = 16;

/// A store's file with its threads, and what came of it and of other engines. The threads end when the last
/// one is dropped.
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
    layout: BlockLayout,
    /// The file; `None` if blocks are only exchanged with other engines.
    slab: Option<Slab>,
    puller: Option<Arc<dyn PullBlocks>>,
    exports: Exports,
    state: Mutex<State>,
    has_jobs: Condvar,
    inbox: Inbox,
}

#[derive(Debug, Default)]
struct State {
    reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    /// Blocks that other engines will be asked for, by engine.
    pulls: Vec<(PeerId, VecDeque<(StoreSlot, BlockHash)>)>,
    /// Bytes that were read and not taken.
    read: HashMap<StoreSlot, Vec<u8>>,
    spare: Vec<Vec<u8>>,
    is_closing: bool,
    /// Whether the last write failed, which was logged.
    is_failing: bool,
}

/// A slot to be read.
#[derive(Debug)]
struct Read {
    slot: StoreSlot,
    hash: BlockHash,
    /// Number under which another engine gets it; `None` if it is for this one.
    export: Option<ExportId>,
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
    /// Starts the threads of a file, if there is one, which report to `inbox`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        layout: BlockLayout,
        slab: Option<Slab>,
        puller: Option<Arc<dyn PullBlocks>>,
        inbox: Inbox,
    ) -> std::io::Result<Self> {
        let n_threads = if slab.is_some() { N_THREADS } else { 0 };
        let (exports, state, has_jobs) = (Exports::default(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { layout, slab, puller, exports, state, has_jobs, inbox });
        let stop = Arc::new(StopOnDrop(Arc::clone(&shared)));
        for number in 0..n_threads {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("throng-store-{number}"));
            thread.spawn(move || run(&shared))?;
        }
        Ok(Self { shared, _stop: stop })
    }

    /// Blocks that other engines have asked for.
    pub fn exports(&self) -> &Exports {
        &self.shared.exports
    }

    /// Layout of the blocks.
    pub fn layout(&self) -> &BlockLayout {
        &self.shared.layout
    }

    /// Carries out an order of the core.
    pub fn carry_out(&self, order: StoreOrder) {
        match order {
            StoreOrder::Read(slot, hash) => self.order_read(Read { slot, hash, export: None }),
            StoreOrder::Drop(slot) => drop(self.take_read(slot)),
            StoreOrder::ReadForPeer(export, slot, hash) => {
                self.order_read(Read { slot, hash, export: Some(export) });
            }
            StoreOrder::Missing(export) => self.shared.exports.deliver(export, None),
            StoreOrder::Pull(slot, hash, peer) => {
                let mut state = self.shared.lock();
                match state.pulls.iter_mut().find(|(known, _)| *known == peer) {
                    Some((_, blocks)) => blocks.push_back((slot, hash)),
                    None => state.pulls.push((peer, [(slot, hash)].into())),
                }
            }
        }
    }

    fn order_read(&self, read: Read) {
        self.shared.lock().reads.push_back(read);
        self.shared.has_jobs.notify_one();
    }

    /// Asks other engines for the blocks that were ordered since the last call, one time each.
    pub fn begin_pulls(&self) {
        let pulls = std::mem::take(&mut self.shared.lock().pulls);
        for (peer, blocks) in pulls {
            let pull = Pull::new(peer, blocks, Box::new(LandingArea(Arc::clone(&self.shared))));
            // Without anybody to ask they fail at once.
            if let Some(puller) = &self.shared.puller {
                puller.pull(pull);
            }
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

    /// Takes the bytes that were read from a slot.
    pub fn take_read(&self, slot: StoreSlot) -> Option<Vec<u8>> {
        self.shared.lock().read.remove(&slot)
    }

    /// Returns a buffer for reuse.
    pub fn reuse(&self, buffer: Vec<u8>) {
        self.shared.lock().reuse(buffer);
    }

    /// Drops all bytes that were read and not taken: the executor that was to take them is lost.
    pub fn forget_read(&self) {
        self.shared.lock().read.clear();
        self.shared.exports.clear();
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

/// Receiver of the blocks that other engines were asked for.
#[derive(Debug)]
struct LandingArea(Arc<Shared>);

impl Landing for LandingArea {
    fn layout(&self) -> &BlockLayout {
        &self.0.layout
    }

    fn report(&self, slot: StoreSlot, bytes: Option<Vec<u8>>) {
        let succeeded = bytes.is_some();
        if let Some(bytes) = bytes {
            self.0.lock().read.insert(slot, bytes);
        }
        // An error means that the engine has ended.
        let _ = self.0.inbox.send(Message::Input(Input::BlockRead { slot, succeeded }));
    }
}

fn run(shared: &Shared) {
    let Some(slab) = &shared.slab else { return };
    loop {
        let mut state = shared.lock();
        let input = if let Some(Read { slot, hash, export }) = state.reads.pop_front() {
            let mut bytes = state.spare_buffer();
            drop(state);
            match export {
                None => read(shared, slab, (slot, &hash), &mut bytes),
                Some(export) => {
                    let content = slab.read(slot, &hash, &mut bytes).ok();
                    shared.exports.deliver(export, content.map(|content| (content, bytes)));
                    continue;
                }
            }
        } else if let Some(Write { slot, content, bytes }) = state.writes.pop_front() {
            drop(state);
            let succeeded = write(shared, slab, (slot, &content), &bytes);
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

fn read(shared: &Shared, slab: &Slab, (slot, hash): (StoreSlot, &BlockHash), bytes: &mut Vec<u8>) -> Input {
    let succeeded = match slab.read(slot, hash, bytes) {
        Ok(_) => {
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

fn write(shared: &Shared, slab: &Slab, (slot, content): (StoreSlot, &BlockContent), bytes: &[u8]) -> bool {
    let result = slab.write(slot, content, bytes);
    let was_failing = std::mem::replace(&mut shared.lock().is_failing, result.is_err());
    if let Err(error) = &result
        && !was_failing
    {
        let path = slab.path().display();
        warn!(%error, "blocks cannot be written to {path}; they stay in memory only");
    }
    result.is_ok()
}
