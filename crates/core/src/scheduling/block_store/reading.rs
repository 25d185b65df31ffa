//! Slots whose contents come back to the executor's memory, from the disk or from other engines: whether that
//! pays, and how far they have come. Does not know bytes.

use super::{BlockSource, BlockStore, SlotState, StoreOrder};
use crate::scheduling::batch::{BlockLoad, StoreSlot, StoredPlace};
use crate::scheduling::block_hash::BlockContent;
use crate::time::Nanos;

/// Weight of a new observation of the time that reading takes.
const LEARNING_RATE: f64 = 0.2;

/// Factor by which the time that reading takes is believed less at each decision against it, so that a store
/// that was slow once is tried again.
const FORGETTING: f64 = 0.98;

/// Progress of a slot that a sequence wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadProgress {
    /// Not asked for.
    Wanted,
    /// Asked for.
    Reading,
    /// Waiting in host memory.
    Read,
    /// Lost or damaged.
    Failed,
}

impl BlockStore {
    /// The slot with this content, if it can be read and no sequence wants it already.
    pub fn find(&self, content: &BlockContent) -> Option<StoreSlot> {
        let slot = *self.by_hash.get(&content.hash)?;
        let held = &self.slots[slot.0 as usize];
        let is_equal = held.content.is_some_and(|held| held == *content);
        (is_equal && held.state == SlotState::Settled).then_some(slot)
    }

    /// Whether bringing `n_blocks` blocks back is expected to take less time than `computing`; `None` is
    /// unknown.
    pub fn pays(&mut self, source: BlockSource, n_blocks: usize, computing: Option<Nanos>) -> bool {
        let (Some(read_s), Some(computing)) = (self.read_s.get_mut(&source), computing) else { return true };
        let pays = *read_s * n_blocks as f64 <= computing.as_secs_f64();
        if !pays {
            *read_s *= FORGETTING;
            self.counters.declined_blocks += n_blocks as u64;
        }
        pays
    }

    /// Keeps the content of a slot for a sequence until it is [loaded](Self::load) or
    /// [given up](Self::give_up).
    ///
    /// # Panics
    /// When [`Self::find`] would not have given it.
    pub fn want(&mut self, slot: StoreSlot) {
        let held = &mut self.slots[slot.0 as usize];
        assert!(held.content.is_some() && held.state == SlotState::Settled, "a slot that cannot be read");
        held.state = SlotState::Wanted;
        let key = (held.used, slot);
        self.by_use.remove(&key);
    }

    /// Asks for a wanted slot to be read; `false` if too many are.
    pub fn ask(&mut self, slot: StoreSlot) -> bool {
        let held = &mut self.slots[slot.0 as usize];
        let Some(content) = held.content else { return false };
        let order = match held.peer {
            None if self.n_reading >= self.capacity.max_reads => return false,
            None => {
                self.n_reading += 1;
                StoreOrder::Read(slot, content.hash)
            }
            Some(_) if !self.landing.ask(self.capacity.max_pulls) => return false,
            Some(peer) => StoreOrder::Pull(slot, content.hash, peer),
        };
        held.state = SlotState::Reading;
        self.orders.push(order);
        true
    }

    /// Progress of a slot that a sequence wants.
    pub fn progress(&self, slot: StoreSlot) -> ReadProgress {
        match self.slots[slot.0 as usize].state {
            SlotState::Wanted => ReadProgress::Wanted,
            SlotState::Reading => ReadProgress::Reading,
            SlotState::Read => ReadProgress::Read,
            _ => ReadProgress::Failed,
        }
    }

    /// Loads a slot that was read, in the step that is being planned.
    pub fn load(&mut self, slot: StoreSlot, to: StoredPlace) {
        debug_assert_eq!(self.progress(slot), ReadProgress::Read);
        if self.slots[slot.0 as usize].peer.is_some() {
            self.land(slot);
        } else {
            self.settle(slot);
            self.n_reading -= 1;
            self.counters.loaded_blocks += 1;
        }
        self.loads.push(BlockLoad { slot, to });
    }

    /// Gives up a slot that a sequence wanted.
    pub fn give_up(&mut self, slot: StoreSlot) {
        match self.slots[slot.0 as usize].state {
            SlotState::Wanted => self.settle(slot),
            SlotState::Reading => self.slots[slot.0 as usize].state = SlotState::Abandoned,
            SlotState::Read => {
                self.note_arrived(slot);
                self.settle(slot);
                self.orders.push(StoreOrder::Drop(slot));
            }
            SlotState::Failed => self.forget(slot),
            _ => {}
        }
    }

    /// Counts a slot no more among those that are on the way or wait in host memory.
    pub(super) fn note_arrived(&mut self, slot: StoreSlot) {
        match self.slots[slot.0 as usize].peer {
            None => self.n_reading -= 1,
            Some(_) => self.landing.n_pulling -= 1,
        }
    }

    /// Makes a slot of the disk one whose content can be found. Frees a slot of another engine's block.
    pub(super) fn settle(&mut self, slot: StoreSlot) {
        let held = &mut self.slots[slot.0 as usize];
        held.state = SlotState::Settled;
        if held.peer.is_some() {
            return self.forget(slot);
        }
        self.by_use.insert((held.used, slot));
    }

    /// Notes blocks that were there and were computed.
    pub fn note_declined(&mut self, n_blocks: usize) {
        self.counters.declined_blocks += n_blocks as u64;
    }

    /// Learns how long bringing `n_blocks` blocks back took.
    pub fn observe_reading(&mut self, source: BlockSource, n_blocks: usize, took: Nanos) {
        if n_blocks > 0 {
            let each_s = took.as_secs_f64() / n_blocks as f64;
            let read_s = self.read_s.entry(source).or_insert(each_s);
            *read_s += LEARNING_RATE * (each_s - *read_s);
            if source != BlockSource::Disk {
                self.counters.block_pull_ns = (*read_s * 1e9) as u64;
            }
        }
    }

    /// Notes that a slot was read, or could not be.
    pub fn note_read(&mut self, slot: StoreSlot, succeeded: bool) {
        let Some(held) = self.slots.get_mut(slot.0 as usize) else { return };
        match (held.state, succeeded) {
            (SlotState::Reading, true) => held.state = SlotState::Read,
            (SlotState::Abandoned, true) => {
                self.note_arrived(slot);
                self.settle(slot);
                self.orders.push(StoreOrder::Drop(slot));
            }
            (SlotState::Reading, false) => {
                // The slot goes to no other content before its sequence has seen the failure.
                held.state = SlotState::Failed;
                self.note_failed(slot);
                self.unname(slot);
            }
            (SlotState::Abandoned, false) => {
                self.note_failed(slot);
                self.forget(slot);
            }
            _ => {}
        }
    }

    fn note_failed(&mut self, slot: StoreSlot) {
        self.note_arrived(slot);
        match self.slots[slot.0 as usize].peer {
            None => self.counters.failed_reads += 1,
            Some(_) => self.counters.failed_pulls += 1,
        }
    }
}
