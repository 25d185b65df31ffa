//! Blocks outside of the executor's memory: on a disk, and in other engines. Holds the content of each slot,
//! the contents that are to be saved, and the slots that are being read. Slots of the disk are given to new
//! contents least recently used first, and the end of a prefix before its beginning; a block that comes from
//! another engine has a slot until it is loaded. Does not know bytes, files and connections.

mod exports;
mod pulls;
mod reading;
mod states;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::request::PeerId;
use crate::scheduling::batch::{BlockId, BlockLoad, BlockSave, ExportId, MemorySlot, StoreSlot, StoredPlace};
use crate::scheduling::block_hash::{BlockContent, BlockHash};
use crate::scheduling::name_hasher::NameState;
use crate::time::{Nanos, Timestamp};
use exports::Exports;
pub use pulls::LEAST_PULLED_BLOCKS;
use pulls::Landing;
pub use reading::ReadProgress;
use states::UnsavedState;

/// Time without saves after a save that failed.
const REST_AFTER_FAILURE: Nanos = Nanos::from_ms(10_000);

/// Size and bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCapacity {
    /// Number of slots.
    pub n_slots: u32,
    /// Maximum number of blocks that one step saves.
    pub max_saves_per_step: u32,
    /// Maximum number of blocks that are being written.
    pub max_writes: u32,
    /// Maximum number of blocks that are being read, or were read and not loaded.
    pub max_reads: u32,
    /// Maximum number of blocks that other engines were asked for and that are not loaded; 0 if they are
    /// not asked.
    pub max_pulls: u32,
    /// Maximum number of blocks that one step copies for other engines.
    pub max_exports_per_step: u32,
    /// Maximum number of blocks that other engines have asked for and that no step has copied.
    pub max_exports: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Number of parts of a recurrent state, each of which has a slot; 0 for a model without.
    pub n_state_parts: u32,
}

/// Counts of a store since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Number of blocks that were written.
    pub saved_blocks: u64,
    /// Number of blocks that were brought back.
    pub loaded_blocks: u64,
    /// Blocks that left the executor's memory without having been saved.
    pub lost_blocks: u64,
    /// Number of blocks that could not be written.
    pub failed_writes: u64,
    /// Number of blocks that could not be read, or were damaged.
    pub failed_reads: u64,
    /// Number of blocks that were stored and were computed all the same, since reading them was expected to
    /// take longer, or took too long.
    pub declined_blocks: u64,
    /// Blocks that came from other engines.
    pub pulled_blocks: u64,
    /// Blocks that other engines were asked for and that did not come.
    pub failed_pulls: u64,
    /// Blocks that were given to other engines.
    pub served_blocks: u64,
    /// Bytes of a block; 0 if other engines are not asked.
    pub block_bytes: u64,
    /// Number of blocks whose bytes a recurrent state has; 0 for a model without, or if other engines are not
    /// asked.
    pub state_blocks: u64,
    /// Expected nanoseconds of a block that comes from another engine, from the latest that gave some.
    pub block_pull_ns: u64,
}

/// Place from which a block comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockSource {
    /// The store of this engine.
    Disk,
    /// Another engine.
    Peer(PeerId),
}

/// Contents of a store and the traffic with it.
#[derive(Debug)]
pub struct BlockStore {
    capacity: StoreCapacity,
    /// Slots of the disk, then those of blocks that come from other engines.
    slots: Vec<Slot>,
    free: Vec<StoreSlot>,
    by_hash: HashMap<BlockHash, StoreSlot, NameState>,
    /// Slots in the order in which they are reused.
    by_use: BTreeSet<(UseKey, StoreSlot)>,
    /// Published blocks that are not saved yet, the oldest first; at most the executor's number of blocks.
    unsaved: VecDeque<(BlockId, BlockHash)>,
    max_unsaved: usize,
    /// Kept states of which parts are not saved yet, the oldest first; at most one in each of their slots.
    unsaved_states: VecDeque<UnsavedState>,
    n_writing: u32,
    /// Number of slots whose bytes wait in host memory or are on the way there.
    n_reading: u32,
    /// Saves of the step that is being planned.
    saves: Vec<BlockSave>,
    /// Loads of the step that is being planned.
    loads: Vec<BlockLoad>,
    orders: Vec<StoreOrder>,
    /// Time of the newest plan.
    now: Timestamp,
    /// No save before this time.
    resting_until: Timestamp,
    /// Expected seconds for bringing back one block among others; none before the first.
    read_s: BTreeMap<BlockSource, f64>,
    landing: Landing,
    exports: Exports,
    counters: StoreCounters,
}

/// Order to the owner of the store's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOrder {
    /// Read this slot, which should hold the content of this name, into host memory.
    Read(StoreSlot, BlockHash),
    /// Drop the content that was read from this slot.
    Drop(StoreSlot),
    /// Ask another engine for the content of this name, which gets this slot; to be reported like a read.
    Pull(StoreSlot, BlockHash, PeerId),
    /// Read this slot, which should hold the content of this name, for another engine.
    ReadForPeer(ExportId, StoreSlot, BlockHash),
    /// Tell another engine that its block is not here.
    Missing(ExportId),
}

/// Time of the last use, and the position from the end.
type UseKey = (Timestamp, u32);

#[derive(Debug, Clone, Copy)]
struct Slot {
    content: Option<BlockContent>,
    used: UseKey,
    state: SlotState,
    /// The engine from which the content comes; `None` in a slot of the disk.
    peer: Option<PeerId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// The slot is empty, or its content can be found.
    Settled,
    /// The slot's bytes are being written to the store.
    Writing,
    /// The slot was written by an executor that was lost; whether the write succeeded is unknown.
    Orphaned,
    /// A sequence needs the slot and has not requested it.
    Wanted,
    /// A sequence needs the slot, and it is being read.
    Reading,
    /// A sequence needs the slot, and its bytes wait in host memory.
    Read,
    /// The slot is read for a sequence that no longer needs it.
    Abandoned,
    /// Could not be read, and the sequence that wants it was not told yet.
    Failed,
    /// Loaded by the newest step; its bytes may still be in host memory.
    Landed,
}

impl BlockStore {
    /// Creates a store beside an executor of `n_blocks` blocks, with the contents that its slots hold
    /// already, the most recently used last.
    pub fn new(
        capacity: StoreCapacity,
        n_blocks: usize,
        kept: impl IntoIterator<Item = (StoreSlot, BlockContent)>,
    ) -> Self {
        let used = (Timestamp::default(), 0);
        let empty = Slot { content: None, used, state: SlotState::Settled, peer: None };
        let mut store = Self {
            slots: vec![empty; capacity.n_slots as usize],
            free: Vec::new(),
            by_hash: HashMap::default(),
            by_use: BTreeSet::new(),
            unsaved: VecDeque::new(),
            max_unsaved: n_blocks,
            unsaved_states: VecDeque::new(),
            n_writing: 0,
            n_reading: 0,
            saves: Vec::new(),
            loads: Vec::new(),
            orders: Vec::new(),
            now: Timestamp::default(),
            resting_until: Timestamp::default(),
            read_s: BTreeMap::new(),
            landing: Landing::default(),
            exports: Exports::default(),
            counters: StoreCounters {
                block_bytes: if capacity.max_pulls > 0 { capacity.block_bytes } else { 0 },
                state_blocks: if capacity.max_pulls > 0 { capacity.n_state_parts.into() } else { 0 },
                ..StoreCounters::default()
            },
            capacity,
        };
        for (order, (slot, content)) in kept.into_iter().enumerate() {
            let is_new = !store.by_hash.contains_key(&content.hash);
            if let Some(place) = store.slots.get_mut(slot.0 as usize)
                && place.content.is_none()
                && is_new
            {
                // All of them before the first use of this process.
                place.content = Some(content);
                place.used = (Timestamp::default(), order as u32);
                store.by_use.insert((place.used, slot));
                store.by_hash.insert(content.hash, slot);
            }
        }
        let empty = |slot: &StoreSlot| store.slots[slot.0 as usize].content.is_none();
        store.free = (0..capacity.n_slots).rev().map(StoreSlot).filter(empty).collect();
        store
    }

    /// Number of slots whose content can be found.
    pub fn n_kept(&self) -> usize {
        self.by_hash.len()
    }

    /// Number of slots of the disk.
    pub fn n_total(&self) -> usize {
        self.capacity.n_slots as usize
    }

    /// Counts since the store was attached.
    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    /// Whether all published blocks are saved, or will not be.
    pub fn is_settled(&self) -> bool {
        let is_empty = self.unsaved.is_empty() && self.unsaved_states.is_empty();
        (is_empty || self.rests()) && self.n_writing == 0
    }

    /// Sets the time of the plan that begins.
    pub fn begin_plan(&mut self, now: Timestamp) {
        self.now = now;
        self.free_landed();
    }

    /// Notes that a prefix was used, by the names of its blocks in order.
    pub fn touch(&mut self, names: &[BlockHash]) {
        for (n_before, name) in names.iter().enumerate() {
            let Some(&slot) = self.by_hash.get(name) else { continue };
            self.set_used(slot, (self.now, u32::MAX - n_before as u32));
        }
        self.touch_state(names);
    }

    fn set_used(&mut self, slot: StoreSlot, used: UseKey) {
        let held = &mut self.slots[slot.0 as usize];
        let is_ordered = self.by_use.remove(&(held.used, slot));
        held.used = used;
        if is_ordered {
            self.by_use.insert((used, slot));
        }
    }

    /// Notes that a slot was written, or could not be.
    pub fn note_written(&mut self, slot: StoreSlot, succeeded: bool) {
        let Some(held) = self.slots.get_mut(slot.0 as usize) else { return };
        match held.state {
            SlotState::Writing => self.n_writing -= 1,
            SlotState::Orphaned => {}
            _ => return,
        }
        if succeeded {
            self.counters.saved_blocks += 1;
            self.settle(slot);
        } else {
            self.counters.failed_writes += 1;
            self.resting_until = self.now + REST_AFTER_FAILURE;
            self.forget(slot);
        }
    }

    /// Frees a slot whose content is lost.
    fn forget(&mut self, slot: StoreSlot) {
        self.unname(slot);
        let held = &mut self.slots[slot.0 as usize];
        held.state = SlotState::Settled;
        match held.peer {
            None => self.free.push(slot),
            Some(_) => self.landing.free.push(slot),
        }
    }

    /// Takes the content of a slot away.
    fn unname(&mut self, slot: StoreSlot) {
        let held = &mut self.slots[slot.0 as usize];
        if let Some(content) = held.content.take()
            && held.peer.is_none()
        {
            self.by_hash.remove(&content.hash);
        }
    }

    /// Notes that a block was published.
    pub fn note_published(&mut self, block: BlockId, hash: BlockHash) {
        if self.by_hash.contains_key(&hash) || self.capacity.n_slots == 0 {
            return;
        }
        if self.unsaved.len() >= self.max_unsaved {
            self.unsaved.pop_front();
        }
        self.unsaved.push_back((block, hash));
    }

    /// Drops the saves and loads that were planned for the executor: its memory is lost.
    pub fn forget_executor(&mut self) {
        self.unsaved.clear();
        self.unsaved_states.clear();
        self.saves.clear();
        self.loads.clear();
        self.exports.planned.clear();
        for held in self.slots.iter_mut().filter(|held| held.state == SlotState::Writing) {
            held.state = SlotState::Orphaned;
        }
        self.n_writing = 0;
    }

    /// Adds a place to those that the planned step saves, unless too much is being written. `false` if it is
    /// not saved and not there already.
    fn save(&mut self, from: StoredPlace, content: &BlockContent) -> bool {
        if self.by_hash.contains_key(&content.hash) {
            return true;
        }
        if self.rests() || self.is_busy() {
            return false;
        }
        let Some(slot) = self.free.pop().or_else(|| self.take_oldest()) else { return false };
        let used = (self.now, u32::MAX - content.n_before);
        self.slots[slot.0 as usize] =
            Slot { content: Some(*content), used, state: SlotState::Writing, peer: None };
        self.by_hash.insert(content.hash, slot);
        self.n_writing += 1;
        self.saves.push(BlockSave { from, slot, content: *content });
        true
    }

    fn take_oldest(&mut self) -> Option<StoreSlot> {
        let (_, slot) = self.by_use.pop_first()?;
        if let Some(content) = self.slots[slot.0 as usize].content.take() {
            self.by_hash.remove(&content.hash);
        }
        Some(slot)
    }

    fn rests(&self) -> bool {
        self.now < self.resting_until
    }

    fn is_busy(&self) -> bool {
        self.n_writing >= self.capacity.max_writes
            || self.saves.len() >= self.capacity.max_saves_per_step as usize
    }

    /// Whether the planned step loads the place, which holds another content before it.
    fn is_loaded(&self, place: impl Fn(StoredPlace) -> bool) -> bool {
        self.loads.iter().any(|load| place(load.to))
    }

    /// Plans the saves of a step: first of contents that leave their blocks with it, then of states and of
    /// published blocks as far as there is room. `content_of` returns the content of a block, `is_kept`
    /// whether a slot still has the state at the end of a prefix.
    pub(super) fn plan_saves<'a>(
        &mut self,
        dropped: impl IntoIterator<Item = (BlockId, BlockContent)>,
        content_of: impl Fn(BlockId) -> Option<&'a BlockContent>,
        is_kept: impl Fn(MemorySlot, BlockHash) -> bool,
    ) {
        if self.capacity.n_slots == 0 {
            return;
        }
        for (block, content) in dropped {
            let place = StoredPlace::Block(block);
            if !self.is_loaded(|to| to == place) && !self.save(place, &content) {
                self.counters.lost_blocks += 1;
            }
        }
        self.plan_state_saves(is_kept);
        while !self.rests()
            && !self.is_busy()
            && let Some((block, hash)) = self.unsaved.pop_front()
        {
            let place = StoredPlace::Block(block);
            if self.is_loaded(|to| to == place) {
                return self.unsaved.push_front((block, hash));
            }
            // Otherwise the block was given to another content, and this one was saved then.
            if let Some(content) = content_of(block).filter(|content| content.hash == hash) {
                self.save(place, content);
            }
        }
    }

    /// Whether the planned step saves, loads or exports anything.
    pub fn has_traffic(&self) -> bool {
        !self.saves.is_empty() || !self.loads.is_empty() || !self.exports.planned.is_empty()
    }

    /// Takes the saves of the planned step.
    pub fn take_saves(&mut self) -> impl Iterator<Item = BlockSave> {
        self.saves.drain(..)
    }

    /// Takes the loads of the planned step.
    pub fn take_loads(&mut self) -> impl Iterator<Item = BlockLoad> {
        self.loads.drain(..)
    }

    /// Takes the orders since the last call.
    pub fn take_orders(&mut self) -> impl Iterator<Item = StoreOrder> {
        self.orders.drain(..)
    }

    /// Checks that slots, names and counts agree.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_landing()?;
        let (mut n_named, mut n_ordered, mut n_reading, mut n_writing) = (0, 0, 0, 0);
        let mut n_failed = 0;
        for (i, held) in self.slots.iter().enumerate().take(self.n_total()) {
            let slot = StoreSlot(i as u32);
            match held.state {
                SlotState::Writing => n_writing += 1,
                SlotState::Reading | SlotState::Read | SlotState::Abandoned => n_reading += 1,
                SlotState::Failed => n_failed += 1,
                SlotState::Settled | SlotState::Orphaned | SlotState::Wanted | SlotState::Landed => {}
            }
            let Some(content) = &held.content else { continue };
            n_named += 1;
            if self.by_hash.get(&content.hash) != Some(&slot) {
                return Err(format!("{slot:?} is not found under its name"));
            }
            let is_ordered = self.by_use.contains(&(held.used, slot));
            if is_ordered != (held.state == SlotState::Settled) {
                return Err(format!("{slot:?} is {:?} and in the order of use: {is_ordered}", held.state));
            }
            n_ordered += usize::from(is_ordered);
        }
        let counts = (self.by_hash.len(), self.by_use.len(), self.n_reading, self.n_writing);
        if counts != (n_named, n_ordered, n_reading, n_writing) {
            return Err(format!("{counts:?} != {:?}", (n_named, n_ordered, n_reading, n_writing)));
        }
        let is_full = n_named + n_failed + self.free.len() == self.n_total();
        if is_full { Ok(()) } else { Err("a slot is neither free nor named".into()) }
    }
}
