//! Blocks of a running sequence that come back from a store: they are read one after the other, and the
//! sequence computes nothing meanwhile. Does not decide whether that pays.

use super::{Running, Sequence};
use crate::scheduling::batch::{BLOCK_TOKENS, StoreSlot};
use crate::scheduling::block_pool::BlockPool;
use crate::scheduling::block_store::{BlockStore, ReadProgress};
use crate::time::{Nanos, Timestamp};

/// Slots of the store whose contents follow what the sequence has.
#[derive(Debug)]
pub(super) struct Restoring {
    slots: Vec<StoreSlot>,
    n_loaded: usize,
    began: Timestamp,
    /// Time at which the rest is computed instead.
    deadline: Timestamp,
    /// Whether its tokens count as found in the cache.
    is_first_start: bool,
}

impl Sequence<Running> {
    /// Begins to bring back the blocks that follow those that it has, and allocates them; the pool must have
    /// them.
    pub fn restore(
        &mut self,
        slots: Vec<StoreSlot>,
        (began, deadline): (Timestamp, Timestamp),
        is_first_start: bool,
        pool: &mut BlockPool,
    ) {
        if let Some(store) = pool.store_mut() {
            slots.iter().for_each(|&slot| store.want(slot));
        }
        self.allocate(self.state.n_computed + slots.len() * BLOCK_TOKENS, pool);
        self.state.restoring = Some(Restoring { slots, n_loaded: 0, began, deadline, is_first_start });
    }

    /// Whether blocks are on their way from the store.
    pub fn is_restoring(&self) -> bool {
        self.state.restoring.is_some()
    }

    /// Time at which it gives up the blocks that have not come from the store.
    pub fn restore_deadline(&self) -> Option<Timestamp> {
        Some(self.state.restoring.as_ref()?.deadline)
    }

    /// Loads the blocks that were read, in their order, and asks for the next ones. Ends with the last block,
    /// with one that cannot be read, or at the deadline. Returns the number of tokens that count as found in
    /// the cache.
    pub fn continue_restoring(&mut self, now: Timestamp, pool: &mut BlockPool) -> usize {
        let Some(mut restoring) = self.state.restoring.take() else { return 0 };
        let n_before = restoring.n_loaded;
        let mut has_failed = false;
        while let Some(&slot) = restoring.slots.get(restoring.n_loaded)
            && let Some(store) = pool.store_mut()
        {
            match store.progress(slot) {
                ReadProgress::Read => store.load(slot, self.state.table.as_slice()[self.n_whole_blocks()]),
                ReadProgress::Failed => {
                    has_failed = true;
                    break;
                }
                ReadProgress::Wanted | ReadProgress::Reading => break,
            }
            restoring.n_loaded += 1;
            self.state.n_computed += BLOCK_TOKENS;
            self.publish(pool);
        }
        let n_tokens = (restoring.n_loaded - n_before) * BLOCK_TOKENS;
        self.timeline.restored_tokens += n_tokens as u32;
        let n_found = if restoring.is_first_start { n_tokens } else { 0 };
        self.timeline.cached_tokens += n_found as u32;
        let is_done = restoring.n_loaded == restoring.slots.len();
        let Some(store) = pool.store_mut() else { return n_found };
        if is_done || has_failed || restoring.deadline <= now {
            restoring.give_up_rest(store);
            let took = now.since(restoring.began);
            self.timeline.restoring = Nanos(self.timeline.restoring.0 + took.0);
            store.observe_reading(restoring.n_loaded, took);
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

    fn n_whole_blocks(&self) -> usize {
        self.state.n_computed / BLOCK_TOKENS
    }
}

impl Restoring {
    fn give_up_rest(&self, store: &mut BlockStore) {
        let rest = &self.slots[self.n_loaded..];
        rest.iter().for_each(|&slot| store.give_up(slot));
        store.note_declined(rest.len());
    }
}
