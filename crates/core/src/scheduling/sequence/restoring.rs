//! Blocks of a running sequence that come back from a store or from another engine: they come one after the
//! other, and the sequence computes nothing meanwhile. With a recurrent state they are of use only together:
//! if a part of it does not come, the sequence waits again and computes all. Does not decide whether that
//! pays.

use super::{Running, Sequence, Waiting};
use crate::request::PeerId;
use crate::scheduling::batch::{BLOCK_TOKENS, StoreSlot, StoredPlace};
use crate::scheduling::block_hash::BlockContent;
use crate::scheduling::block_pool::BlockPool;
use crate::scheduling::block_store::{BlockSource, BlockStore, ReadProgress};
use crate::time::{Nanos, Timestamp};

/// Blocks that follow those that a sequence has, and could come back.
#[derive(Debug, Default)]
pub struct Restorable {
    /// Slots of the store.
    pub slots: Vec<StoreSlot>,
    /// The engine that has the blocks after them.
    pub peer: Option<PeerId>,
    /// Number of these.
    pub n_pulled: usize,
    /// Source of the recurrent state after all of them; `None` if nothing comes back, or the model has none.
    pub state: Option<StateSource>,
    /// Number of cached blocks before them, if there is such a state.
    pub n_cached: usize,
}

impl Restorable {
    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.slots.len() + self.n_pulled
    }

    /// Whether nothing comes back.
    pub fn is_empty(&self) -> bool {
        self.n_blocks() == 0 && self.state.is_none()
    }
}

/// Place from which a recurrent state comes.
#[derive(Debug)]
pub enum StateSource {
    /// The executor's memory.
    Memory,
    /// Slots of the store, one for each part.
    Store(Vec<StoreSlot>),
    /// The engine that has the blocks.
    Peer,
}

/// Beginning of a sequence.
#[derive(Debug, Default)]
pub struct Start {
    /// Number of its blocks that are cached and that it can continue from at once.
    pub n_begun: usize,
    /// Blocks that come back, after all that are cached.
    pub restorable: Restorable,
}

/// Bounds on the time for which a sequence waits for its blocks.
#[derive(Debug, Clone, Copy)]
pub struct RestoreLimits {
    /// Time at which it begins to wait.
    pub began: Timestamp,
    /// Time at which the rest is computed instead.
    pub deadline: Timestamp,
    /// Longest wait for the next block of another engine.
    pub most_silence: Nanos,
}

/// Slots whose contents follow what the sequence has.
#[derive(Debug)]
pub(super) struct Restoring {
    /// Slots of the parts of a state, then of blocks.
    slots: Vec<StoreSlot>,
    n_parts: usize,
    /// Index of the first block.
    first: usize,
    n_loaded: usize,
    /// Whether the sequence continues only from the state after the last block.
    with_state: bool,
    /// Whether the state does not come.
    has_lost_state: bool,
    limits: RestoreLimits,
    /// Time at which the newest block came.
    latest: Timestamp,
    /// The place from which all of them come; `None` if there are two.
    source: Option<BlockSource>,
    /// Whether some of them come from another engine.
    pulls: bool,
    /// Whether its tokens count as found in the cache.
    is_first_start: bool,
}

impl Sequence<Running> {
    /// Begins to load the blocks that follow the sequence's own, and allocates them; the pool must have them.
    /// The recurrent state comes first, without which they are of no use.
    pub fn restore(
        &mut self,
        restorable: Restorable,
        limits: RestoreLimits,
        is_first_start: bool,
        pool: &mut BlockPool,
    ) {
        let (first, n_wanted) = (self.blocks().len(), restorable.n_blocks());
        let Restorable { slots: stored, peer, n_pulled, state, .. } = restorable;
        let (n_before, end) = (first + stored.len(), first + n_wanted);
        let with_state = state.is_some();
        let pulls_state = matches!(state, Some(StateSource::Peer));
        let mut slots = if let Some(StateSource::Store(slots)) = state { slots } else { Vec::new() };
        let (mut n_parts, mut n_missing_parts) = (slots.len(), 0);
        let mut source = Some(BlockSource::Disk);
        slots.extend(stored);
        if let Some(store) = pool.store_mut() {
            slots.iter().for_each(|&slot| store.want(slot));
            if let Some(peer) = peer.filter(|_| n_pulled > 0 || pulls_state) {
                source = slots.is_empty().then_some(BlockSource::Peer(peer));
                if pulls_state {
                    let prefix = self.block_content(end - 1).hash;
                    let parts = (0..store.n_state_parts()).map(|part| BlockContent::of_state(&prefix, part));
                    let parts: Vec<_> = parts.map_while(|content| store.want_from(peer, content)).collect();
                    n_parts = parts.len();
                    n_missing_parts = store.n_state_parts() as usize - n_parts;
                    slots.splice(0..0, parts);
                }
                let contents = (n_before..end).map(|idx| self.block_content(idx));
                slots.extend(contents.map_while(|content| store.want_from(peer, content)));
            }
        }
        let n_blocks = slots.len() - n_parts;
        self.allocate((first + n_blocks) * BLOCK_TOKENS, pool);
        self.state.restoring = Some(Box::new(Restoring {
            slots,
            n_parts,
            first,
            n_loaded: 0,
            with_state,
            has_lost_state: with_state && (n_blocks < n_wanted || n_missing_parts > 0),
            limits,
            latest: limits.began,
            source,
            pulls: n_pulled > 0 || pulls_state,
            is_first_start,
        }));
    }

    /// Whether it waits for a recurrent state that does not come.
    pub fn has_lost_state(&self) -> bool {
        self.state.restoring.as_ref().is_some_and(|restoring| restoring.has_lost_state)
    }

    /// Number of tokens that it has when all has come back; 0 if nothing does.
    pub(super) fn restored_end(&self) -> usize {
        let end = |restoring: &Restoring| {
            (restoring.first + restoring.slots.len()).saturating_sub(restoring.n_parts)
        };
        self.state.restoring.as_ref().map_or(0, |restoring| end(restoring) * BLOCK_TOKENS)
    }

    /// Releases its blocks and waits again, to compute all that is not in memory.
    pub fn compute_instead(mut self, pool: &mut BlockPool) -> Sequence<Waiting> {
        self.give_back(pool);
        self.into_state(Waiting { is_charged: false, may_restore: false })
    }

    /// Whether blocks are on their way from the store.
    pub fn is_restoring(&self) -> bool {
        self.state.restoring.is_some()
    }

    /// Time at which the sequence stops waiting for blocks from the store.
    pub fn restore_deadline(&self) -> Option<Timestamp> {
        Some(self.state.restoring.as_ref()?.deadline())
    }

    /// Loads the blocks that were read, in their order, and requests the next ones. Ends with the last block,
    /// with one that cannot be read, or at the deadline. Returns the number of tokens that count as found in
    /// the cache.
    pub fn continue_restoring(&mut self, now: Timestamp, pool: &mut BlockPool) -> usize {
        let Some(mut restoring) = self.state.restoring.take_if(|restoring| !restoring.has_lost_state) else {
            return 0;
        };
        let (n_loaded_before, n_before) = (restoring.n_loaded, self.state.n_computed);
        let (mut n_pulled, mut has_failed) = (0, false);
        while let Some(&slot) = restoring.slots.get(restoring.n_loaded)
            && let Some(store) = pool.store_mut()
        {
            match store.progress(slot) {
                ReadProgress::Read => {
                    n_pulled += usize::from(store.peer_of(slot).is_some());
                    store.load(slot, self.restored_place(&restoring));
                }
                ReadProgress::Failed => {
                    has_failed = true;
                    break;
                }
                ReadProgress::Wanted | ReadProgress::Reading => break,
            }
            restoring.n_loaded += 1;
            if !restoring.with_state {
                self.state.n_computed += BLOCK_TOKENS;
                self.publish_blocks(pool);
            }
        }
        let is_done = restoring.n_loaded == restoring.slots.len();
        if restoring.with_state && is_done {
            let end = restoring.first + restoring.slots.len() - restoring.n_parts;
            self.state.n_computed = end * BLOCK_TOKENS;
            self.take_restored_state(restoring.n_parts > 0, pool);
            self.publish_blocks(pool);
            n_pulled = if restoring.pulls { end } else { 0 };
        }
        let n_tokens = self.state.n_computed - n_before;
        let pulled_tokens = n_tokens.min(n_pulled * BLOCK_TOKENS);
        self.timeline.restored_tokens += (n_tokens - pulled_tokens) as u32;
        self.timeline.pulled_tokens += pulled_tokens as u32;
        if restoring.n_loaded > n_loaded_before {
            restoring.latest = now;
        }
        let n_found = if restoring.is_first_start { n_tokens } else { 0 };
        self.timeline.cached_tokens += n_found as u32;
        let Some(store) = pool.store_mut() else { return n_found };
        if is_done || has_failed || restoring.deadline() <= now {
            restoring.give_up_rest(store);
            let took = now.since(restoring.limits.began);
            self.timeline.restoring = Nanos(self.timeline.restoring.0 + took.0);
            if let Some(source) = restoring.source {
                // An engine that gave nothing in time is taken for slow.
                let is_slow = matches!(source, BlockSource::Peer(_)) && !has_failed;
                store.observe_reading(source, restoring.n_loaded.max(usize::from(is_slow)), took);
            }
            if restoring.with_state && !is_done {
                restoring.has_lost_state = true;
                restoring.slots.truncate(restoring.n_loaded);
                self.state.restoring = Some(restoring);
            }
            return n_found;
        }
        for &slot in &restoring.slots[restoring.n_loaded..] {
            if store.progress(slot) == ReadProgress::Wanted && !store.ask(slot) {
                break;
            }
        }
        self.state.restoring = Some(restoring);
        n_found
    }

    /// Stops bringing blocks back.
    pub(super) fn stop_restoring(&mut self, pool: &mut BlockPool) {
        if let (Some(restoring), Some(store)) = (self.state.restoring.take(), pool.store_mut()) {
            restoring.give_up_rest(store);
        }
    }

    /// The place of the next slot's content.
    fn restored_place(&self, restoring: &Restoring) -> StoredPlace {
        match restoring.n_loaded.checked_sub(restoring.n_parts) {
            Some(i) => StoredPlace::Block(self.blocks()[restoring.first + i]),
            None => self.state_part(restoring.n_loaded as u32),
        }
    }
}

impl Restoring {
    fn deadline(&self) -> Timestamp {
        if self.has_lost_state {
            return self.limits.began;
        }
        let silent = self.latest + self.limits.most_silence;
        if self.pulls { self.limits.deadline.min(silent) } else { self.limits.deadline }
    }

    fn give_up_rest(&self, store: &mut BlockStore) {
        let rest = &self.slots[self.n_loaded..];
        rest.iter().for_each(|&slot| store.give_up(slot));
        store.note_declined(rest.len());
    }
}
