//! Ownership of blocks. A block is used (it has references), cached (it has none, but its content has a
//! name) or free. Does not know sequences and bytes.

mod cache_events;
mod dropped;

use std::collections::HashMap;

use crate::scheduling::batch::BlockId;
use crate::scheduling::block_hash::{BlockHash, BlockKey, BlockTokens};
use crate::scheduling::name_hasher::NameState;
use crate::scheduling::slot_pool::SlotPool;
use cache_events::CacheEvents;
pub use cache_events::{CacheCursor, CacheEvent, CacheLog, CacheNews};
pub use dropped::DroppedBlock;
use dropped::DroppedBlocks;

/// Index that ends a list.
const NONE: u32 = u32::MAX;

/// All blocks of one KV cache. Every operation but [`BlockPool::forget_published`],
/// [`BlockPool::record_cache_events`] and [`BlockPool::check_invariants`] takes constant time.
#[derive(Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    by_hash: HashMap<BlockHash, BlockId, NameState>,
    /// Cached blocks, least recently used first, as a list threaded through the slots.
    oldest: u32,
    newest: u32,
    n_cached: usize,
    states: SlotPool<BlockHash>,
    events: CacheEvents,
    dropped: DroppedBlocks,
}

#[derive(Debug, Clone)]
struct Slot {
    n_references: u32,
    previous: u32,
    next: u32,
    identity: Option<Identity>,
}

/// Content of a published block. A lookup compares all of it, so that not even a faulty hash leads to a
/// block with other tokens.
#[derive(Debug, Clone, PartialEq)]
struct Identity {
    hash: BlockHash,
    parent: BlockHash,
    tokens: BlockTokens,
}

impl BlockPool {
    /// Creates a pool of `n_blocks` free blocks.
    pub fn new(n_blocks: u32) -> Self {
        let slot = Slot { n_references: 0, previous: NONE, next: NONE, identity: None };
        Self {
            slots: vec![slot; n_blocks as usize],
            free: (0..n_blocks).rev().map(BlockId).collect(),
            by_hash: HashMap::with_capacity_and_hasher(n_blocks as usize, NameState::default()),
            oldest: NONE,
            newest: NONE,
            n_cached: 0,
            states: SlotPool::default(),
            events: CacheEvents::default(),
            dropped: DroppedBlocks::default(),
        }
    }

    /// The same pool with slots of recurrent state: a sequence of a model with recurrent layers needs one
    /// beside its blocks.
    #[must_use]
    pub fn with_states(self, n_slots: u32) -> Self {
        Self { states: SlotPool::new(n_slots), ..self }
    }

    /// The slots of recurrent state.
    pub fn states(&self) -> &SlotPool<BlockHash> {
        &self.states
    }

    /// The slots of recurrent state.
    pub fn states_mut(&mut self) -> &mut SlotPool<BlockHash> {
        &mut self.states
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
        self.n_cached
    }

    /// Number of blocks with references.
    pub fn n_used(&self) -> usize {
        self.n_total() - self.n_available()
    }

    /// Number of blocks that [`BlockPool::allocate`] can give.
    pub fn n_available(&self) -> usize {
        self.n_free() + self.n_cached
    }

    /// Number of references to `block`.
    pub fn n_references(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].n_references
    }

    /// Allocates a block with one reference: a free one, else the least recently used cached one, whose
    /// content is dropped (see [`Self::take_dropped`]).
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None if self.oldest == NONE => return None,
            None => {
                let block = BlockId(self.oldest);
                self.unlink(block);
                self.drop_content(block);
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
        if self.slot_mut(block).n_references == 0 {
            assert!(self.slot_mut(block).identity.is_some(), "a reference to a free block");
            self.unlink(block);
        }
        self.slot_mut(block).n_references += 1;
    }

    /// Takes a reference away. With the last one a published block becomes the most recently used cached one,
    /// any other becomes free.
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
        if slot.identity.is_some() { self.link_newest(block) } else { self.free.push(block) }
    }

    /// Names the content of a used block, so that lookups find it. If another block already has that
    /// content, lookups keep finding that one and this one stays nameless.
    pub fn publish(&mut self, block: BlockId, hash: BlockHash, parent: BlockHash, tokens: &BlockTokens) {
        assert!(self.n_references(block) > 0, "only its holder can say what a block holds");
        assert!(self.slot_mut(block).identity.is_none(), "a block is published once");
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_hash.entry(hash) {
            entry.insert(block);
            self.slot_mut(block).identity = Some(Identity { hash, parent, tokens: *tokens });
            self.note(CacheEvent::Stored(hash.key()));
        }
    }

    /// The block that holds `tokens` after the prefix `parent`; `hash` is the name of both together. The
    /// match is verified against the block's own tokens.
    pub fn find(&self, hash: BlockHash, parent: BlockHash, tokens: &BlockTokens) -> Option<BlockId> {
        let block = *self.by_hash.get(&hash)?;
        let identity = self.slots[block.0 as usize].identity.as_ref()?;
        (identity.parent == parent && identity.tokens == *tokens).then_some(block)
    }

    /// Removes all names: cached blocks become free, used ones when they are released. For executors that
    /// have lost the bytes of the blocks.
    pub fn forget_published(&mut self) {
        while self.oldest != NONE {
            let block = BlockId(self.oldest);
            self.unlink(block);
            self.free.push(block);
        }
        for slot in &mut self.slots {
            slot.identity = None;
        }
        self.by_hash.clear();
        self.states.forget();
        self.dropped.take();
        self.note(CacheEvent::Cleared);
    }

    /// Starts recording which names are published and removed, beginning with all present ones.
    pub fn record_cache_events(&mut self) {
        let names: Vec<BlockKey> =
            self.slots.iter().filter_map(|slot| Some(slot.identity.as_ref()?.hash.key())).collect();
        self.events.begin(names.into_iter());
    }

    /// Whether names are recorded.
    pub fn records_cache_events(&self) -> bool {
        self.events.is_recording()
    }

    /// Takes the changes since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
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

    /// Checks that every block is in exactly one state and that the counts agree.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut seen = vec![0_u8; self.n_total()];
        for block in &self.free {
            seen[block.0 as usize] += 1;
            let slot = &self.slots[block.0 as usize];
            if slot.n_references > 0 || slot.identity.is_some() {
                return Err(format!("{block:?} is free but referenced or published"));
            }
        }
        let (mut block, mut n_cached) = (self.oldest, 0);
        while block != NONE {
            seen[block as usize] += 1;
            n_cached += 1;
            let slot = &self.slots[block as usize];
            if slot.n_references > 0 || slot.identity.is_none() || n_cached > self.n_total() {
                return Err(format!("block {block} is cached but referenced, nameless or in a cycle"));
            }
            block = slot.next;
        }
        if n_cached != self.n_cached {
            return Err(format!("{n_cached} cached blocks, counted {}", self.n_cached));
        }
        let n_used = self.slots.iter().filter(|s| s.n_references > 0).count();
        if n_used + n_cached + self.free.len() != self.n_total() || seen.iter().any(|&n| n > 1) {
            let (n_free, n_total) = (self.free.len(), self.n_total());
            return Err(format!("{n_used} used + {n_cached} cached + {n_free} free != {n_total}"));
        }
        self.states.check_invariants()?;
        self.check_names()
    }

    fn check_names(&self) -> Result<(), String> {
        let mut n_named = 0;
        for (i, slot) in self.slots.iter().enumerate() {
            let Some(identity) = &slot.identity else { continue };
            n_named += 1;
            if self.by_hash.get(&identity.hash) != Some(&BlockId(i as u32)) {
                return Err(format!("block {i} is not found under its name"));
            }
        }
        if n_named == self.by_hash.len() { Ok(()) } else { Err("a name leads to no block".into()) }
    }

    fn slot_mut(&mut self, block: BlockId) -> &mut Slot {
        &mut self.slots[block.0 as usize]
    }

    fn drop_content(&mut self, block: BlockId) {
        if let Some(Identity { hash, parent, tokens }) = self.slot_mut(block).identity.take() {
            self.by_hash.remove(&hash);
            self.note(CacheEvent::Removed(hash.key()));
            let n_blocks = self.n_total();
            self.dropped.note(DroppedBlock { block, hash, parent, tokens }, n_blocks);
        }
    }

    fn note(&mut self, event: CacheEvent) {
        if self.events.note(event, self.slots.len()) {
            self.record_cache_events();
        }
    }

    fn link_newest(&mut self, block: BlockId) {
        let previous = self.newest;
        let slot = self.slot_mut(block);
        (slot.previous, slot.next) = (previous, NONE);
        match previous {
            NONE => self.oldest = block.0,
            previous => self.slots[previous as usize].next = block.0,
        }
        self.newest = block.0;
        self.n_cached += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let Slot { previous, next, .. } = *self.slot_mut(block);
        match previous {
            NONE => self.oldest = next,
            previous => self.slots[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.slots[next as usize].previous = previous,
        }
        self.n_cached -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::TenantId;
    use crate::scheduling::batch::BLOCK_TOKENS;

    fn root() -> BlockHash {
        BlockHash::root(&TenantId::anonymous(), None, None)
    }

    fn publish(pool: &mut BlockPool, token: u32) -> BlockId {
        let block = pool.allocate().expect("a block is left");
        let tokens = [token; BLOCK_TOKENS];
        pool.publish(block, root().child(&tokens), root(), &tokens);
        block
    }

    fn find(pool: &BlockPool, token: u32) -> Option<BlockId> {
        let tokens = [token; BLOCK_TOKENS];
        pool.find(root().child(&tokens), root(), &tokens)
    }

    #[test]
    fn the_least_recently_used_content_goes_first() {
        let mut pool = BlockPool::new(3);
        let blocks = [publish(&mut pool, 1), publish(&mut pool, 2), publish(&mut pool, 3)];
        for block in blocks {
            pool.release(block);
        }
        let again = find(&pool, 1).expect("it is cached");
        pool.retain(again);
        pool.release(again);
        pool.check_invariants().unwrap();
        assert_eq!(pool.allocate(), Some(blocks[1]));
        assert_eq!(
            (find(&pool, 1), find(&pool, 2), find(&pool, 3)),
            (Some(blocks[0]), None, Some(blocks[2]))
        );
        pool.check_invariants().unwrap();
    }

    #[test]
    fn a_hit_is_verified_against_its_tokens() {
        let mut pool = BlockPool::new(2);
        let block = publish(&mut pool, 1);
        let (mine, other) = ([1; BLOCK_TOKENS], [2; BLOCK_TOKENS]);
        let hash = root().child(&mine);
        assert_eq!(pool.find(hash, root(), &mine), Some(block));
        assert_eq!(pool.find(hash, root(), &other), None);
        assert_eq!(pool.find(hash, hash, &mine), None);
    }

    #[test]
    fn the_second_block_with_one_content_stays_nameless() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (publish(&mut pool, 1), publish(&mut pool, 1));
        pool.release(second);
        assert_eq!((pool.n_free(), pool.n_cached()), (1, 0));
        pool.release(first);
        assert_eq!((pool.n_free(), pool.n_cached(), find(&pool, 1)), (1, 1, Some(first)));
        pool.check_invariants().unwrap();
    }

    #[test]
    fn readers_of_its_events_know_its_names() {
        let mut pool = BlockPool::new(3);
        let key = |token| root().child(&[token; BLOCK_TOKENS]).key();
        let first = publish(&mut pool, 1);
        assert!(pool.take_cache_events().is_empty(), "nobody asked");
        pool.record_cache_events();
        pool.release(first);
        let others = [publish(&mut pool, 2), publish(&mut pool, 3)];
        let evicting = publish(&mut pool, 4);
        let expected = [CacheEvent::Cleared, CacheEvent::Stored(key(1)), CacheEvent::Stored(key(2))];
        let then = [CacheEvent::Stored(key(3)), CacheEvent::Removed(key(1)), CacheEvent::Stored(key(4))];
        assert_eq!(pool.take_cache_events(), [expected, then].concat());
        for token in 5..100 {
            pool.release(if token == 5 { evicting } else { find(&pool, token - 1).expect("used") });
            publish(&mut pool, token);
        }
        let mut log = CacheLog::new(100);
        let events = pool.take_cache_events();
        assert!(events.len() <= 7, "{events:?}");
        log.extend(events);
        let mut stored = [2, 3, 99].map(key);
        stored.sort();
        assert_eq!(log.read(&mut CacheCursor::default()).stored, stored);
        others.into_iter().for_each(|block| pool.release(block));
    }

    #[test]
    fn what_gives_way_is_told_to_whoever_asks() {
        let mut pool = BlockPool::new(2);
        let blocks = [publish(&mut pool, 1), publish(&mut pool, 2)];
        blocks.into_iter().for_each(|block| pool.release(block));
        pool.allocate().expect("a cached block gives way");
        assert_eq!(pool.take_dropped(), [], "nobody asked");
        pool.record_dropped();
        let again = pool.allocate().expect("a cached block gives way");
        let [hash, parent] = [root().child(&[2; BLOCK_TOKENS]), root()];
        let dropped = DroppedBlock { block: blocks[1], hash, parent, tokens: [2; BLOCK_TOKENS] };
        assert_eq!((again, pool.take_dropped()), (blocks[1], vec![dropped]));
        assert_eq!(pool.take_dropped(), [], "told once");
        for token in 3..100 {
            pool.release(again);
            publish(&mut pool, token);
        }
        assert!(pool.take_dropped().len() <= pool.n_total(), "a list that nobody takes is bounded");
    }

    #[test]
    fn forgetting_frees_what_nobody_holds() {
        let mut pool = BlockPool::new(2);
        let (held, cached) = (publish(&mut pool, 1), publish(&mut pool, 2));
        pool.release(cached);
        pool.forget_published();
        pool.check_invariants().unwrap();
        assert_eq!((find(&pool, 1), find(&pool, 2), pool.n_free(), pool.n_used()), (None, None, 1, 1));
        pool.release(held);
        assert_eq!(pool.n_free(), 2);
    }
}
