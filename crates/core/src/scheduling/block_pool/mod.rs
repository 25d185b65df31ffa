//! Ownership of blocks. A block is used (it has references), cached (it has none, but its content has a name)
//! or free. The cached content to evict is chosen by its worth ([`EvictionPolicy`]). Does not know sequences
//! and bytes.

mod by_age;
mod cache_events;
mod cached;
mod dropped;
mod invariants;
mod marks;
mod reuse;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::request::TenantId;
use crate::scheduling::batch::{BlockId, ExportId, MemorySlot, StoredPlace};
use crate::scheduling::block_hash::{BlockContent, BlockHash, BlockKey};
use crate::scheduling::block_store::BlockStore;
use crate::scheduling::name_hasher::NameState;
use crate::scheduling::slot_pool::SlotPool;
use crate::time::{Nanos, Timestamp};
use cache_events::CacheEvents;
pub use cache_events::{CacheCursor, CacheEvent, CacheLog, CacheNews};
use cached::CachedBlocks;
pub use dropped::DroppedBlock;
use dropped::DroppedBlocks;
pub use marks::EvictionCounters;
use marks::Mark;
use reuse::{ReuseClass, ReuseTimes};

/// Index that marks the end of a list.
const NONE: u32 = u32::MAX;

/// Policy that chooses which cached content is evicted. It does not change the outcome of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionPolicy {
    /// Evicts the block that is least likely to be used again soon, by the learned times between uses. Blocks
    /// that a waiting request will read stay.
    #[default]
    Worth,
    /// Evicts the least recently used block.
    Lru,
}

/// All blocks of one KV cache. Every operation but [`BlockPool::forget_published`],
/// [`BlockPool::record_cache_events`] and [`BlockPool::check_invariants`] takes constant time, and
/// [`BlockPool::allocate`] now and then a time that grows with the number of cached chains.
#[derive(Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    by_hash: HashMap<BlockHash, BlockId, NameState>,
    cached: CachedBlocks,
    times: ReuseTimes,
    /// Time of the newest plan.
    now: Timestamp,
    /// Name of the prefix before the block that was released last.
    latest_released: BlockHash,
    states: SlotPool<BlockHash>,
    events: CacheEvents,
    dropped: DroppedBlocks,
    evictions: EvictionCounters,
    /// Blocks kept outside of this memory; `None` if there is no store.
    store: Option<Box<BlockStore>>,
}

#[derive(Debug, Clone)]
struct Slot {
    n_references: u32,
    /// Group of cached blocks, and its neighbours there.
    group: u32,
    previous: u32,
    next: u32,
    /// Number of published blocks that follow in a chain.
    n_children: u32,
    class: ReuseClass,
    /// Time since which a waiting request will read the block, if one does.
    awaited: Option<Timestamp>,
    /// The client's wish to keep the block, if there is one.
    mark: Option<Mark>,
    /// Content, if the block is published. A lookup compares all of it.
    content: Option<BlockContent>,
}

impl BlockPool {
    /// Creates a pool of `n_blocks` free blocks.
    pub fn new(n_blocks: u32) -> Self {
        let slot = Slot {
            n_references: 0,
            group: NONE,
            previous: NONE,
            next: NONE,
            n_children: 0,
            class: ReuseClass::ONCE,
            awaited: None,
            mark: None,
            content: None,
        };
        Self {
            slots: vec![slot; n_blocks as usize],
            free: (0..n_blocks).rev().map(BlockId).collect(),
            by_hash: HashMap::with_capacity_and_hasher(n_blocks as usize, NameState::default()),
            cached: CachedBlocks::new(EvictionPolicy::default(), 0),
            times: ReuseTimes::new(n_blocks as usize),
            now: Timestamp::default(),
            latest_released: BlockHash::from_bytes([0; 32]),
            states: SlotPool::default(),
            events: CacheEvents::default(),
            dropped: DroppedBlocks::default(),
            evictions: EvictionCounters::default(),
            store: None,
        }
    }

    /// Adds slots of recurrent state to the pool: a sequence of a model with recurrent layers needs one
    /// beside its blocks.
    #[must_use]
    pub fn with_states(self, n_slots: u32) -> Self {
        Self { states: SlotPool::new(n_slots), ..self }
    }

    /// The same pool with this choice of what gives way. Marks count for this share of its blocks.
    #[must_use]
    pub fn with_eviction(self, policy: EvictionPolicy, max_marked_percent: u32) -> Self {
        let max_marked = self.slots.len() * max_marked_percent.min(100) as usize / 100;
        Self { cached: CachedBlocks::new(policy, max_marked), ..self }
    }

    /// Sets the time.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        self.cached.expire(&mut self.slots, now);
        if let Some(store) = &mut self.store {
            store.begin_plan(now);
        }
    }

    /// The slots of recurrent state.
    pub fn states(&self) -> &SlotPool<BlockHash> {
        &self.states
    }

    /// The slots of recurrent state.
    pub fn states_mut(&mut self) -> &mut SlotPool<BlockHash> {
        &mut self.states
    }

    /// Adds a store for blocks that are evicted from this memory.
    pub fn attach_store(&mut self, store: BlockStore) {
        self.dropped.begin();
        self.store = Some(Box::new(store));
    }

    /// The store, if there is one.
    pub fn store(&self) -> Option<&BlockStore> {
        self.store.as_deref()
    }

    /// The store, if there is one.
    pub fn store_mut(&mut self) -> Option<&mut BlockStore> {
        self.store.as_deref_mut()
    }

    /// Content of a published block.
    pub fn content(&self, block: BlockId) -> Option<&BlockContent> {
        self.slots[block.0 as usize].content.as_ref()
    }

    /// Number of all blocks.
    pub fn n_total(&self) -> usize {
        self.slots.len()
    }

    /// Number of blocks without references and without a name.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Number of blocks without references whose content can be found.
    pub fn n_cached(&self) -> usize {
        self.cached.len()
    }

    /// Number of cached blocks that a client asked to keep.
    pub fn n_marked(&self) -> usize {
        self.cached.marks().n_cached()
    }

    /// Numbers of blocks whose content was dropped.
    pub fn evictions(&self) -> EvictionCounters {
        self.evictions
    }

    /// Number of blocks with references.
    pub fn n_used(&self) -> usize {
        self.n_total() - self.n_available()
    }

    /// Number of blocks that [`BlockPool::allocate`] can give.
    pub fn n_available(&self) -> usize {
        self.n_free() + self.n_cached()
    }

    /// Number of references to `block`.
    pub fn n_references(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].n_references
    }

    /// Allocates a block with one reference: a free one, else the cached one with the least worth, whose
    /// content is dropped (see [`Self::take_dropped`]).
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let block = self.cached.victim(&self.slots, &self.times, self.now)?;
                let slot = &self.slots[block.0 as usize];
                let (last_use, mark, next) = (self.cached.last_use(slot), self.cached.mark(slot), slot.next);
                self.cached.marks().count_eviction(mark, &mut self.evictions);
                self.cached.remove(&mut self.slots, block);
                self.drop_content(block, (next != NONE).then_some(BlockId(next)), last_use);
                block
            }
        };
        self.slot_mut(block).n_references = 1;
        Some(block)
    }

    /// Adds a reference to a used or cached block.
    ///
    /// # Panics
    /// When the block is free.
    pub fn retain(&mut self, block: BlockId) {
        let slot = &self.slots[block.0 as usize];
        let (mut gap, class) = (Nanos(0), slot.class);
        if slot.n_references == 0 {
            assert!(slot.content.is_some(), "a reference to a free block");
            gap = self.now.since(self.cached.last_use(slot));
            self.cached.remove(&mut self.slots, block);
        }
        self.times.note_reuse(class, gap);
        let slot = self.slot_mut(block);
        (slot.class, slot.awaited) = (ReuseClass::of_gap(gap), None);
        slot.n_references += 1;
    }

    /// Notes that no block has the content of this name, which a sequence looked up.
    pub fn note_missed(&mut self, name: BlockHash) {
        self.times.note_missed(name.key(), self.now);
    }

    /// Whether [`Self::note_missed`] has any effect.
    pub fn remembers_dropped(&self) -> bool {
        self.times.has_ghosts()
    }

    /// Notes that a waiting request will read these blocks.
    pub fn note_awaited(&mut self, blocks: &[BlockId], since: Timestamp) {
        for block in blocks {
            self.slot_mut(*block).awaited.get_or_insert(since);
        }
    }

    /// Marks those of these used blocks that are published: for `keep` after each use they stay ahead of
    /// unmarked ones. The longer time holds for a block that is marked already.
    pub fn mark(&mut self, blocks: &[BlockId], tenant: &TenantId, keep: Nanos) {
        if !self.cached.marks().are_on() || keep == Nanos(0) {
            return;
        }
        let owner = self.cached.marks_mut().owner(tenant);
        for block in blocks {
            let slot = &mut self.slots[block.0 as usize];
            if slot.content.is_none() || slot.n_references == 0 {
                continue;
            }
            let longest = slot.mark.map_or(keep, |mark| mark.keep.max(keep));
            let before = slot.mark.replace(Mark { owner, keep: longest });
            self.cached.marks_mut().note_marked(owner);
            before.into_iter().for_each(|before| self.cached.marks_mut().note_unmarked(before.owner));
        }
        self.cached.marks_mut().forget_if_unused(owner);
    }

    /// Takes a reference away. With the last one a published block becomes a cached one, any other becomes
    /// free.
    ///
    /// # Panics
    /// When the block has no reference.
    pub fn release(&mut self, block: BlockId) {
        let slot = self.slot_mut(block);
        assert!(slot.n_references > 0, "a reference given back twice");
        slot.n_references -= 1;
        if slot.n_references > 0 {
            return;
        }
        let Some(content) = slot.content else { return self.free.push(block) };
        let follows = self.latest_released == content.hash;
        self.latest_released = content.parent;
        let now = self.now;
        self.cached.add(&mut self.slots, block, follows, now);
    }

    /// Names the content of a used block, so that lookups find it. If another block already has that content,
    /// lookups keep finding that block and this one stays nameless.
    pub fn publish(&mut self, block: BlockId, content: &BlockContent) {
        self.publish_after(None, block, content);
    }

    /// [`Self::publish`] of a block that probably follows the content of block `before`.
    pub fn publish_after(&mut self, before: Option<BlockId>, block: BlockId, content: &BlockContent) {
        assert!(self.n_references(block) > 0, "only its holder can say what a block holds");
        assert!(self.slot_mut(block).content.is_none(), "a block is published once");
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_hash.entry(content.hash) {
            entry.insert(block);
            // A chain goes on in the rhythm of its end; a branch of it is something new.
            let mut class = ReuseClass::ONCE;
            if let Some(parent) = self.parent_of(content, before) {
                let parent = self.slot_mut(parent);
                if parent.n_children == 0 {
                    class = parent.class;
                }
                parent.n_children += 1;
            }
            let slot = self.slot_mut(block);
            (slot.content, slot.class, slot.awaited) = (Some(*content), class, None);
            self.note(CacheEvent::Stored(content.hash.key()));
            if let Some(store) = &mut self.store {
                store.note_published(block, content.hash);
            }
        }
    }

    /// The block with this content. The match is verified against the block's own tokens.
    pub fn find(&self, content: &BlockContent) -> Option<BlockId> {
        let block = *self.by_hash.get(&content.hash)?;
        let held = self.content(block)?;
        (held.parent == content.parent && held.tokens == content.tokens).then_some(block)
    }

    /// Removes all names: cached blocks become free, used ones when they are released. For executors that
    /// have lost the bytes of the blocks.
    pub fn forget_published(&mut self) {
        for block in self.cached.blocks(&self.slots) {
            self.cached.remove(&mut self.slots, block);
            self.free.push(block);
        }
        for slot in &mut self.slots {
            (slot.content, slot.n_children) = (None, 0);
            slot.mark.take().into_iter().for_each(|mark| self.cached.marks_mut().note_unmarked(mark.owner));
        }
        self.by_hash.clear();
        self.states.forget();
        self.dropped.take();
        if let Some(store) = &mut self.store {
            store.forget_executor();
        }
        self.note(CacheEvent::Cleared);
    }

    /// Starts recording which names are published and removed, beginning with all present ones.
    pub fn record_cache_events(&mut self) {
        let names = self.names();
        self.events.begin(names.into_iter());
    }

    /// Names of all published blocks and kept states.
    pub fn names(&self) -> Vec<BlockKey> {
        let blocks = self.slots.iter().filter_map(|slot| Some(slot.content.as_ref()?.hash.key()));
        blocks.chain(self.states.names().map(|prefix| prefix.key().of_state())).collect()
    }

    /// Whether names are recorded.
    pub fn records_cache_events(&self) -> bool {
        self.events.is_recording()
    }

    /// Takes the changes since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        let dropped: Vec<_> = self.states.take_dropped().collect();
        for prefix in dropped {
            self.note(CacheEvent::Removed(prefix.key().of_state()));
        }
        self.events.take()
    }

    /// Starts recording the cached content that [`Self::allocate`] drops.
    pub fn record_dropped(&mut self) {
        self.dropped.begin();
    }

    /// The cached content that was dropped since the last call, in the order in which it was dropped. Its
    /// bytes are still in the blocks until a step that was planned afterwards writes to them: a
    /// [`BlockMove`](crate::scheduling::batch::BlockMove) of that step can save them.
    pub fn take_dropped(&mut self) -> Vec<DroppedBlock> {
        self.dropped.take()
    }

    /// Plans the saves of a step to the store: contents that leave their blocks with it, and blocks that are
    /// not saved yet.
    pub fn plan_saves(&mut self) {
        if let Some(mut store) = self.store.take() {
            let dropped = self.dropped.take().into_iter().map(|dropped| (dropped.block, dropped.content));
            let is_kept = |slot, prefix| self.states.find(prefix) == Some(slot);
            store.plan_saves(dropped, |block| self.content(block), is_kept);
            self.store = Some(store);
        }
    }

    /// Queues blocks that another engine asks for, and spares those that are here for a while.
    pub fn request_exports(&mut self, wanted: &[(ExportId, BlockHash)], now: Timestamp) {
        let Some(store) = &mut self.store else { return };
        store.request_exports(wanted);
        let held: Vec<BlockId> =
            wanted.iter().filter_map(|(_, hash)| self.by_hash.get(hash)).copied().collect();
        self.note_awaited(&held, now);
    }

    /// Plans the exports of a step. Comes after all that changes blocks' contents.
    pub fn plan_exports(&mut self) {
        if let Some(mut store) = self.store.take() {
            let n_parts = store.n_state_parts();
            store.plan_exports(|hash| {
                let block = self.by_hash.get(hash).copied();
                let found = block.and_then(|block| Some((StoredPlace::Block(block), *self.content(block)?)));
                found.or_else(|| (0..n_parts).find_map(|part| self.find_state_part(hash, part)))
            });
            self.store = Some(store);
        }
    }

    /// The place of this part of a state, if `name` is its name.
    fn find_state_part(&self, name: &BlockHash, part: u32) -> Option<(StoredPlace, BlockContent)> {
        let prefix = name.state_part(part);
        let slot = self.states.find(prefix)?;
        Some((StoredPlace::StatePart { slot, part }, BlockContent::of_state(&prefix, part)))
    }

    /// Keeps the state in a held slot for sequences that begin with this prefix.
    pub fn keep_state(&mut self, slot: MemorySlot, prefix: BlockHash) {
        self.states.keep(slot, prefix);
        if self.states.find(prefix) != Some(slot) {
            return;
        }
        self.note(CacheEvent::Stored(prefix.key().of_state()));
        if let Some(store) = &mut self.store {
            store.note_state(slot, prefix);
        }
    }

    fn slot_mut(&mut self, block: BlockId) -> &mut Slot {
        &mut self.slots[block.0 as usize]
    }

    /// The block with the content before this one, which is probably `guess`.
    fn parent_of(&self, content: &BlockContent, guess: Option<BlockId>) -> Option<BlockId> {
        if content.n_before == 0 {
            return None;
        }
        let is_parent =
            |block: &BlockId| self.content(*block).is_some_and(|held| held.hash == content.parent);
        guess.filter(is_parent).or_else(|| self.by_hash.get(&content.parent).copied())
    }

    /// Drops the content of a cached block; `before` is probably the block before it in its chain.
    fn drop_content(&mut self, block: BlockId, before: Option<BlockId>, last_use: Timestamp) {
        let slot = self.slot_mut(block);
        let class = slot.class;
        (slot.n_children, slot.awaited) = (0, None);
        let (mark, content) = (slot.mark.take(), slot.content.take());
        mark.into_iter().for_each(|mark| self.cached.marks_mut().note_unmarked(mark.owner));
        if let Some(content) = content {
            self.by_hash.remove(&content.hash);
            self.times.note_dropped(content.hash.key(), class, last_use);
            if let Some(parent) = self.parent_of(&content, before) {
                let parent = self.slot_mut(parent);
                // The parent may have been published after its child.
                parent.n_children = parent.n_children.saturating_sub(1);
            }
            self.note(CacheEvent::Removed(content.hash.key()));
            let n_blocks = self.n_total();
            self.dropped.note(DroppedBlock { block, content }, n_blocks);
        }
    }

    fn note(&mut self, event: CacheEvent) {
        if self.events.note(event, self.slots.len()) {
            self.record_cache_events();
        }
    }
}

#[cfg(test)]
mod tests;
