//! Blocks that come back from a store: whether reading them pays, and the traffic with the store. Does not
//! know bytes.

use super::media::n_uncut_blocks;
use super::{Scheduler, StepShape, StepTimeModel};
use crate::scheduling::admission::Admission;
use crate::scheduling::batch::{BLOCK_TOKENS, ScheduledBatch, StoreSlot};
use crate::scheduling::block_hash::BlockContent;
use crate::scheduling::block_pool::BlockPool;
use crate::scheduling::block_store::{BlockStore, StoreCapacity, StoreOrder};
use crate::scheduling::sequence::{Running, Sequence, Waiting};
use crate::time::{Nanos, Timestamp};

/// Longest time for which a sequence waits for its blocks while the time of computing them is not known.
const MOST_PATIENCE: Nanos = Nanos::from_ms(10_000);

/// Shortest time for which a sequence waits for its blocks.
const LEAST_PATIENCE: Nanos = Nanos::from_ms(50);

/// Slots of the store with the blocks after the first `n_hits` of a sequence, if reading them is expected to
/// take less time than computing them.
pub(super) fn stored_after(
    sequence: &mut Sequence<Waiting>,
    n_hits: usize,
    admission: &Admission,
    step_time: &StepTimeModel,
    pool: &mut BlockPool,
) -> Vec<StoreSlot> {
    let mut slots = sequence.find_stored(n_hits, pool);
    let n_blocks = n_uncut_blocks(admission, &sequence.request, n_hits + slots.len());
    slots.truncate(n_blocks.saturating_sub(n_hits));
    let computing = computing_time(step_time, n_hits * BLOCK_TOKENS, slots.len() * BLOCK_TOKENS);
    let pays = |store: &mut BlockStore| store.pays(slots.len(), computing);
    if !slots.is_empty() && !pool.store_mut().is_some_and(pays) {
        slots.clear();
    }
    slots
}

/// Moves the planned saves and loads to the batch of the step.
pub(super) fn push_traffic(pool: &mut BlockPool, batch: &mut ScheduledBatch) {
    if let Some(store) = pool.store_mut() {
        store.take_saves().for_each(|save| batch.push_save(save));
        store.take_loads().for_each(|load| batch.push_load(load));
    }
}

/// Expected time for computing `n` tokens after the first `start`; `None` before the first steps.
fn computing_time(step_time: &StepTimeModel, start: usize, n: usize) -> Option<Nanos> {
    let ms = step_time.likely_ms(StepShape::of_sequence(start, n))?;
    Some(Nanos((ms.max(0.0) * 1e6) as u64))
}

impl Scheduler {
    /// Adds a store with the contents that it holds already, the most recently used last. Does nothing for a
    /// model with recurrent layers, whose states a store does not keep, and without prefix caching.
    pub fn attach_store(
        &mut self,
        capacity: StoreCapacity,
        kept: impl IntoIterator<Item = (StoreSlot, BlockContent)>,
    ) {
        if self.may_have_store() {
            let n_blocks = self.pool.n_total();
            self.pool.attach_store(BlockStore::new(capacity, n_blocks, kept));
        }
    }

    /// Whether blocks may be kept in a store.
    pub fn may_have_store(&self) -> bool {
        self.config.prefix_caching && self.pool.states().is_empty() && !self.admission.takes_whole_prompts()
    }

    /// Starts to bring back the blocks of a sequence that starts.
    pub(super) fn begin_restoring(
        &mut self,
        sequence: &mut Sequence<Running>,
        slots: Vec<StoreSlot>,
        is_first_start: bool,
        now: Timestamp,
    ) {
        if slots.is_empty() {
            return;
        }
        let computing = computing_time(&self.step_time, sequence.n_computed(), slots.len() * BLOCK_TOKENS);
        let patience = computing.unwrap_or(MOST_PATIENCE).clamp(LEAST_PATIENCE, MOST_PATIENCE);
        sequence.restore(slots, (now, now + patience), is_first_start, &mut self.pool);
        sequence.continue_restoring(now, &mut self.pool);
    }

    /// Loads blocks that were read, and asks for the next ones.
    pub(super) fn continue_restoring(&mut self, now: Timestamp) {
        if self.pool.store().is_none() {
            return;
        }
        for sequence in &mut self.running {
            let n_found = sequence.continue_restoring(now, &mut self.pool);
            self.counters.cache_hit_tokens += n_found as u64;
        }
    }

    /// Plans the saves of the step; whether it saves or loads anything.
    pub(super) fn plan_traffic(&mut self) -> bool {
        self.pool.plan_saves();
        self.pool.store().is_some_and(BlockStore::has_traffic)
    }

    /// Time at which a sequence gives up blocks that have not come.
    pub fn restore_deadline(&self) -> Option<Timestamp> {
        self.pool.store()?;
        self.running.iter().filter_map(Sequence::restore_deadline).min()
    }

    /// Notes that a slot of the store was read, or could not be.
    pub fn note_read(&mut self, slot: StoreSlot, succeeded: bool) {
        if let Some(store) = self.pool.store_mut() {
            store.note_read(slot, succeeded);
        }
    }

    /// Notes that a slot of the store was written, or could not be.
    pub fn note_written(&mut self, slot: StoreSlot, succeeded: bool) {
        if let Some(store) = self.pool.store_mut() {
            store.note_written(slot, succeeded);
        }
    }

    /// Takes the orders for the store since the last call.
    pub fn take_store_orders(&mut self) -> impl Iterator<Item = StoreOrder> {
        self.pool.store_mut().into_iter().flat_map(BlockStore::take_orders)
    }

    /// Whether nothing waits to be saved.
    pub fn is_saved(&self) -> bool {
        self.pool.store().is_none_or(BlockStore::is_settled)
    }
}
