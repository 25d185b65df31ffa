//! Blocks that are kept in a store outside of the executor's memory, such as a disk: the content of each
//! slot, the contents that are to be saved, and the slots that are being read. Slots are given to new
//! contents least recently used first, and the end of a prefix before its beginning. Does not know bytes and
//! files.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::scheduling::batch::{BlockId, BlockLoad, BlockSave, StoreSlot};
use crate::scheduling::block_hash::{BlockContent, BlockHash};
use crate::scheduling::name_hasher::NameState;
use crate::time::{Nanos, Timestamp};

/// Time for which nothing is saved after a save that failed.
const REST_AFTER_FAILURE: Nanos = Nanos::from_ms(10_000);

/// Weight of a new observation of the time that reading takes.
const LEARNING_RATE: f64 = 0.2;

/// Factor by which the time that reading takes is believed less at each decision against it, so that a store
/// that was slow once is tried again.
const FORGETTING: f64 = 0.98;

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
}

/// Counts of a store since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Blocks that were written.
    pub saved_blocks: u64,
    /// Blocks that were brought back.
    pub loaded_blocks: u64,
    /// Blocks that left the executor's memory without having been saved.
    pub lost_blocks: u64,
    /// Blocks that could not be written.
    pub failed_writes: u64,
    /// Blocks that could not be read, or were damaged.
    pub failed_reads: u64,
    /// Blocks that were there and were computed all the same, since reading them was expected to take longer,
    /// or took too long.
    pub declined_blocks: u64,
}

/// Contents of a store and the traffic with it.
#[derive(Debug)]
pub struct BlockStore {
    capacity: StoreCapacity,
    slots: Vec<Slot>,
    free: Vec<StoreSlot>,
    by_hash: HashMap<BlockHash, StoreSlot, NameState>,
    /// Slots in the order in which they are given to other contents.
    by_use: BTreeSet<(UseKey, StoreSlot)>,
    /// Published blocks that are not saved yet, the oldest first; at most as many as the executor has.
    unsaved: VecDeque<(BlockId, BlockHash)>,
    max_unsaved: usize,
    n_writing: u32,
    /// Slots whose bytes wait in host memory or are on the way there.
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
    /// Expected seconds for reading one block among others; `None` before the first.
    read_s: Option<f64>,
    counters: StoreCounters,
}

/// Order for whoever owns the bytes of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOrder {
    /// Read this slot, which should hold the content of this name, into host memory.
    Read(StoreSlot, BlockHash),
    /// Drop what was read of this slot.
    Drop(StoreSlot),
}

/// Time of the last use, and the position from the end.
type UseKey = (Timestamp, u32);

#[derive(Debug, Clone, Copy)]
struct Slot {
    content: Option<BlockContent>,
    used: UseKey,
    state: SlotState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// Nothing, or a content that can be found.
    Settled,
    /// Its bytes are on their way to the store.
    Writing,
    /// Written by an executor that is gone; nobody may tell how that ended.
    Orphaned,
    /// A sequence wants it and has not asked for it.
    Wanted,
    /// A sequence wants it, and it is being read.
    Reading,
    /// A sequence wants it, and its bytes wait in host memory.
    Read,
    /// Read for a sequence that does not want it any more.
    Abandoned,
}

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
    /// Creates a store beside an executor of `n_blocks` blocks, with the contents that its slots hold
    /// already, the most recently used last.
    pub fn new(
        capacity: StoreCapacity,
        n_blocks: usize,
        kept: impl IntoIterator<Item = (StoreSlot, BlockContent)>,
    ) -> Self {
        let empty = Slot { content: None, used: (Timestamp::default(), 0), state: SlotState::Settled };
        let mut store = Self {
            slots: vec![empty; capacity.n_slots as usize],
            free: Vec::new(),
            by_hash: HashMap::default(),
            by_use: BTreeSet::new(),
            unsaved: VecDeque::new(),
            max_unsaved: n_blocks,
            n_writing: 0,
            n_reading: 0,
            saves: Vec::new(),
            loads: Vec::new(),
            orders: Vec::new(),
            now: Timestamp::default(),
            resting_until: Timestamp::default(),
            read_s: None,
            counters: StoreCounters::default(),
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

    /// Number of slots.
    pub fn n_total(&self) -> usize {
        self.slots.len()
    }

    /// Counts since the store was attached.
    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    /// Whether all that was published is saved, or will not be.
    pub fn is_settled(&self) -> bool {
        (self.unsaved.is_empty() || self.rests()) && self.n_writing == 0
    }

    /// Sets the time of the plan that begins.
    pub fn begin_plan(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// The slot with this content, if it can be read and no sequence wants it already.
    pub fn find(&self, content: &BlockContent) -> Option<StoreSlot> {
        let slot = *self.by_hash.get(&content.hash)?;
        let held = &self.slots[slot.0 as usize];
        let is_equal = held.content.is_some_and(|held| held == *content);
        (is_equal && held.state == SlotState::Settled).then_some(slot)
    }

    /// Notes that a prefix was used, by the names of its blocks in order.
    pub fn touch(&mut self, names: &[BlockHash]) {
        for (n_before, name) in names.iter().enumerate() {
            let Some(&slot) = self.by_hash.get(name) else { continue };
            self.set_used(slot, (self.now, u32::MAX - n_before as u32));
        }
    }

    fn set_used(&mut self, slot: StoreSlot, used: UseKey) {
        let held = &mut self.slots[slot.0 as usize];
        let is_ordered = self.by_use.remove(&(held.used, slot));
        held.used = used;
        if is_ordered {
            self.by_use.insert((used, slot));
        }
    }

    /// Whether reading `n_blocks` blocks is expected to take less time than `computing`; `None` is unknown.
    pub fn pays(&mut self, n_blocks: usize, computing: Option<Nanos>) -> bool {
        let (Some(read_s), Some(computing)) = (self.read_s, computing) else { return true };
        let pays = read_s * n_blocks as f64 <= computing.as_secs_f64();
        if !pays {
            self.read_s = Some(read_s * FORGETTING);
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
        if self.n_reading >= self.capacity.max_reads {
            return false;
        }
        let held = &mut self.slots[slot.0 as usize];
        let Some(content) = held.content else { return false };
        held.state = SlotState::Reading;
        self.n_reading += 1;
        self.orders.push(StoreOrder::Read(slot, content.hash));
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

    /// Loads a slot that was read into a block, in the step that is being planned.
    pub fn load(&mut self, slot: StoreSlot, block: BlockId) {
        debug_assert_eq!(self.progress(slot), ReadProgress::Read);
        self.settle(slot);
        self.n_reading -= 1;
        self.counters.loaded_blocks += 1;
        self.loads.push(BlockLoad { slot, block });
    }

    /// Gives up a slot that a sequence wanted. Does nothing if it could not be read.
    pub fn give_up(&mut self, slot: StoreSlot) {
        match self.slots[slot.0 as usize].state {
            SlotState::Wanted => self.settle(slot),
            SlotState::Reading => self.slots[slot.0 as usize].state = SlotState::Abandoned,
            SlotState::Read => {
                self.settle(slot);
                self.n_reading -= 1;
                self.orders.push(StoreOrder::Drop(slot));
            }
            _ => {}
        }
    }

    fn settle(&mut self, slot: StoreSlot) {
        let held = &mut self.slots[slot.0 as usize];
        held.state = SlotState::Settled;
        self.by_use.insert((held.used, slot));
    }

    /// Notes blocks that were there and were computed.
    pub fn note_declined(&mut self, n_blocks: usize) {
        self.counters.declined_blocks += n_blocks as u64;
    }

    /// Learns how long reading `n_blocks` blocks took.
    pub fn observe_reading(&mut self, n_blocks: usize, took: Nanos) {
        if n_blocks > 0 {
            let each_s = took.as_secs_f64() / n_blocks as f64;
            let before_s = self.read_s.unwrap_or(each_s);
            self.read_s = Some(before_s + LEARNING_RATE * (each_s - before_s));
        }
    }

    /// Notes that a slot was read, or could not be.
    pub fn note_read(&mut self, slot: StoreSlot, succeeded: bool) {
        let Some(held) = self.slots.get_mut(slot.0 as usize) else { return };
        match (held.state, succeeded) {
            (SlotState::Reading, true) => held.state = SlotState::Read,
            (SlotState::Abandoned, true) => {
                self.settle(slot);
                self.n_reading -= 1;
                self.orders.push(StoreOrder::Drop(slot));
            }
            (SlotState::Reading | SlotState::Abandoned, false) => {
                self.n_reading -= 1;
                self.counters.failed_reads += 1;
                self.forget(slot);
            }
            _ => {}
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
        let held = &mut self.slots[slot.0 as usize];
        held.state = SlotState::Settled;
        if let Some(content) = held.content.take() {
            self.by_hash.remove(&content.hash);
        }
        self.free.push(slot);
    }

    /// Notes that a block was published.
    pub fn note_published(&mut self, block: BlockId, hash: BlockHash) {
        if self.by_hash.contains_key(&hash) {
            return;
        }
        if self.unsaved.len() >= self.max_unsaved {
            self.unsaved.pop_front();
        }
        self.unsaved.push_back((block, hash));
    }

    /// Forgets what the executor was to save and load: its memory is lost.
    pub fn forget_executor(&mut self) {
        self.unsaved.clear();
        self.saves.clear();
        self.loads.clear();
        for held in self.slots.iter_mut().filter(|held| held.state == SlotState::Writing) {
            held.state = SlotState::Orphaned;
        }
        self.n_writing = 0;
    }

    /// Adds a block to those that the planned step saves, unless too much is being written. `false` if it is
    /// not saved and not there already.
    fn save(&mut self, block: BlockId, content: &BlockContent) -> bool {
        if self.by_hash.contains_key(&content.hash) {
            return true;
        }
        if self.rests() || self.is_busy() {
            return false;
        }
        let Some(slot) = self.free.pop().or_else(|| self.take_oldest()) else { return false };
        let used = (self.now, u32::MAX - content.n_before);
        self.slots[slot.0 as usize] = Slot { content: Some(*content), used, state: SlotState::Writing };
        self.by_hash.insert(content.hash, slot);
        self.n_writing += 1;
        self.saves.push(BlockSave { block, slot, content: *content });
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

    /// Plans the saves of a step: first of contents that leave their blocks with it, then of published blocks
    /// as far as there is room. `content_of` tells what a block holds.
    pub(super) fn plan_saves<'a>(
        &mut self,
        dropped: impl IntoIterator<Item = (BlockId, BlockContent)>,
        content_of: impl Fn(BlockId) -> Option<&'a BlockContent>,
    ) {
        for (block, content) in dropped {
            // A block that the step loads does not hold the content before the step.
            let is_loaded = self.loads.iter().any(|load| load.block == block);
            if !is_loaded && !self.save(block, &content) {
                self.counters.lost_blocks += 1;
            }
        }
        while !self.rests()
            && !self.is_busy()
            && let Some((block, hash)) = self.unsaved.pop_front()
        {
            // Otherwise the block was given to another content, and this one was saved then.
            if let Some(content) = content_of(block).filter(|content| content.hash == hash) {
                self.save(block, content);
            }
        }
    }

    /// Whether the planned step saves or loads anything.
    pub fn has_traffic(&self) -> bool {
        !self.saves.is_empty() || !self.loads.is_empty()
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
        let (mut n_named, mut n_ordered, mut n_reading, mut n_writing) = (0, 0, 0, 0);
        for (i, held) in self.slots.iter().enumerate() {
            let slot = StoreSlot(i as u32);
            match held.state {
                SlotState::Writing => n_writing += 1,
                SlotState::Reading | SlotState::Read | SlotState::Abandoned => n_reading += 1,
                SlotState::Settled | SlotState::Orphaned | SlotState::Wanted => {}
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
        let is_full = n_named + self.free.len() == self.slots.len();
        if is_full { Ok(()) } else { Err("a slot is neither free nor named".into()) }
    }
}
