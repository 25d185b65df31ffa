//! Blocks that come back from a store or from another engine: whether that pays, and the traffic with both.
//! Does not know bytes.

use super::media::n_uncut_blocks;
use super::{Scheduler, StepShape, StepTimeModel};
use crate::scheduling::admission::Admission;
use crate::scheduling::batch::{BLOCK_TOKENS, BlockId, ExportId, ScheduledBatch, StoreSlot};
use crate::scheduling::block_hash::{BlockContent, BlockHash};
use crate::scheduling::block_pool::BlockPool;
use crate::scheduling::block_store::{
    BlockSource, BlockStore, LEAST_PULLED_BLOCKS, StoreCapacity, StoreOrder,
};
use crate::scheduling::sequence::{
    Restorable, RestoreLimits, Running, Sequence, Start, StateSource, Waiting,
};
use crate::time::{Nanos, Timestamp};

/// Maximum time that a sequence waits for its blocks while the time of computing them is unknown.
const MOST_PATIENCE: Nanos = Nanos::from_ms(10_000);

/// Shortest time for which a sequence waits for its blocks.
const LEAST_PATIENCE: Nanos = Nanos::from_ms(50);

/// Shortest time for which a sequence waits for the blocks of another engine, to which a connection may have
/// to be made first.
const LEAST_PULL_PATIENCE: Nanos = Nanos::from_ms(500);

/// Longest time for which a sequence waits for the next block of another engine.
const MOST_SILENCE: Nanos = Nanos::from_ms(2_000);

/// Where a sequence begins: with the cached blocks `hits`, and with those after them that are in the store or
/// that another engine has, as far as bringing them back is expected to take less time than computing them.
pub(super) fn find_start(
    sequence: &mut Sequence<Waiting>,
    hits: &mut Vec<BlockId>,
    admission: &Admission,
    step_time: &StepTimeModel,
    pool: &mut BlockPool,
) -> Start {
    sequence.find_cached(pool, hits);
    // Both conditions must hold for the hits that remain.
    let (mut n_begun, mut n_before) = (hits.len(), usize::MAX);
    while n_begun < n_before {
        n_before = n_begun;
        n_begun = n_uncut_blocks(admission, &sequence.request, n_begun);
        n_begun = sequence.n_checkpointed(pool, n_begun);
    }
    let mut restorable = Restorable::default();
    if pool.store().is_some() && sequence.state.may_restore {
        restorable = match pool.states().is_empty() {
            true => stored_after(sequence, n_begun, admission, step_time, pool),
            false => state_after(sequence, (n_begun, hits.len()), admission, step_time, pool),
        };
    }
    // Cached blocks without a state after them are of use only if a later state comes back.
    hits.truncate(if restorable.state.is_none() { n_begun } else { restorable.n_cached });
    Start { n_begun, restorable }
}

/// The latest state that can come back, for a model with recurrent layers, with the blocks before it that are
/// not among the first `n_hits`, which are cached. The sequence could begin at once after the first
/// `n_begun`.
fn state_after(
    sequence: &mut Sequence<Waiting>,
    (n_begun, n_hits): (usize, usize),
    admission: &Admission,
    step_time: &StepTimeModel,
    pool: &mut BlockPool,
) -> Restorable {
    let is_uncut = |sequence: &Sequence<Waiting>, n| n_uncut_blocks(admission, &sequence.request, n) == n;
    let mut slots = sequence.find_stored(n_hits, pool);
    let n_here = n_hits + slots.len();
    let here = (n_begun + 1..=n_here).rev().filter(|&n| is_uncut(sequence, n)).collect::<Vec<_>>();
    let here = here.into_iter().find_map(|n| Some((n, sequence.find_state(n, pool)?)));
    let Some(store) = pool.store_mut() else { return Restorable::default() };
    let n_parts = store.n_state_parts() as usize;
    let may_pull = store.may_pull();
    let mut pays = |source, n_slots, end: usize| {
        let (start, n_tokens) = (n_begun * BLOCK_TOKENS, (end - n_begun) * BLOCK_TOKENS);
        store.pays(source, n_slots, computing_time(step_time, start, n_tokens))
    };
    let n_read = |end: usize, state: &StateSource| {
        end.saturating_sub(n_hits) + if matches!(state, StateSource::Memory) { 0 } else { n_parts }
    };
    let here = here.filter(|(end, state)| pays(BlockSource::Disk, n_read(*end, state), *end));
    let last = (sequence.tokens().len() - 1) / BLOCK_TOKENS;
    let begins = here.as_ref().map_or(n_begun, |(end, _)| *end);
    let there = sequence.request.holder.filter(|_| may_pull).and_then(|holder| {
        let end = last.min(holder.n_blocks as usize);
        let is_worth = end >= begins + LEAST_PULLED_BLOCKS
            && is_uncut(sequence, end)
            && pays(BlockSource::Peer(holder.peer), end.saturating_sub(n_here) + n_parts, end);
        is_worth.then_some((end, holder.peer))
    });
    let (end, peer, state) = match (there, here) {
        (Some((end, peer)), _) => (end, Some(peer), StateSource::Peer),
        (None, Some((end, state))) => (end, None, state),
        (None, None) => return Restorable::default(),
    };
    slots.truncate(end.saturating_sub(n_hits));
    let n_pulled = end.saturating_sub(n_here);
    Restorable { slots, peer, n_pulled, state: Some(state), n_cached: n_hits.min(end) }
}

/// The blocks after the first `n_hits` of a sequence that are in the store, and those after them that another
/// engine has.
fn stored_after(
    sequence: &mut Sequence<Waiting>,
    n_hits: usize,
    admission: &Admission,
    step_time: &StepTimeModel,
    pool: &mut BlockPool,
) -> Restorable {
    let mut slots = sequence.find_stored(n_hits, pool);
    let n_uncut = |n: usize| n_uncut_blocks(admission, &sequence.request, n_hits + n).saturating_sub(n_hits);
    // Blocks may fail to come after any of them: the rest must not begin within a picture that is kept whole.
    let n_safe = |n: usize| match sequence.request.media {
        None => n,
        Some(_) => (1..=n).take_while(|&n| n_uncut(n) == n).count(),
    };
    slots.truncate(n_safe(slots.len()));
    let Some(store) = pool.store_mut() else { return Restorable::default() };
    let may_pull = store.may_pull();
    let mut pays = |source, n_before: usize, n_blocks: usize| {
        let start = (n_hits + n_before) * BLOCK_TOKENS;
        store.pays(source, n_blocks, computing_time(step_time, start, n_blocks * BLOCK_TOKENS))
    };
    if !slots.is_empty() && !pays(BlockSource::Disk, 0, slots.len()) {
        slots.clear();
    }
    let Some(holder) = sequence.request.holder else { return Restorable { slots, ..Restorable::default() } };
    let last = (sequence.tokens().len() - 1) / BLOCK_TOKENS;
    let n_after = (holder.n_blocks as usize).min(last).saturating_sub(n_hits);
    let n_pulled = n_safe(n_after).saturating_sub(slots.len());
    let is_worth = may_pull
        && n_pulled >= LEAST_PULLED_BLOCKS
        && pays(BlockSource::Peer(holder.peer), slots.len(), n_pulled);
    let n_pulled = if is_worth { n_pulled } else { 0 };
    Restorable { slots, peer: Some(holder.peer), n_pulled, ..Restorable::default() }
}

/// Moves the planned saves and loads to the batch of the step.
pub(super) fn push_traffic(pool: &mut BlockPool, batch: &mut ScheduledBatch) {
    if let Some(store) = pool.store_mut() {
        store.take_saves().for_each(|save| batch.push_save(save));
        store.take_loads().for_each(|load| batch.push_load(load));
        store.take_exports().for_each(|export| batch.push_export(export));
    }
}

/// Expected time for computing `n` tokens after the first `start`; `None` before the first steps.
fn computing_time(step_time: &StepTimeModel, start: usize, n: usize) -> Option<Nanos> {
    let ms = step_time.likely_ms(StepShape::of_sequence(start, n))?;
    Some(Nanos((ms.max(0.0) * 1e6) as u64))
}

impl Scheduler {
    /// Adds a store with the contents that it holds already, the most recently used last. Ignored for a model
    /// with recurrent layers whose states a store does not keep, and without prefix caching.
    pub fn attach_store(
        &mut self,
        capacity: StoreCapacity,
        kept: impl IntoIterator<Item = (StoreSlot, BlockContent)>,
    ) {
        if self.may_have_store() && (self.pool.states().is_empty() || capacity.n_state_parts > 0) {
            let n_blocks = self.pool.n_total();
            self.pool.attach_store(BlockStore::new(capacity, n_blocks, kept));
        }
    }

    /// Whether blocks may be kept in a store.
    pub fn may_have_store(&self) -> bool {
        self.config.prefix_caching && !self.admission.takes_whole_prompts()
    }

    /// Starts to restore the blocks of a starting sequence; `None` if it waits again, because its state does
    /// not come.
    pub(super) fn begin_restoring(
        &mut self,
        mut sequence: Sequence<Running>,
        restorable: Restorable,
        is_first_start: bool,
        now: Timestamp,
    ) -> Option<Sequence<Running>> {
        if restorable.is_empty() {
            return Some(sequence);
        }
        let (start, end) = (sequence.n_computed(), sequence.blocks().len() + restorable.n_blocks());
        let computing = computing_time(&self.step_time, start, end * BLOCK_TOKENS - start);
        let least = if restorable.peer.is_some() { LEAST_PULL_PATIENCE } else { LEAST_PATIENCE };
        let patience = computing.unwrap_or(MOST_PATIENCE).clamp(least, MOST_PATIENCE);
        let limits = RestoreLimits { began: now, deadline: now + patience, most_silence: MOST_SILENCE };
        sequence.restore(restorable, limits, is_first_start, &mut self.pool);
        sequence.continue_restoring(now, &mut self.pool);
        if sequence.has_lost_state() {
            let sequence = sequence.compute_instead(&mut self.pool);
            self.wait_again(sequence);
            return None;
        }
        Some(sequence)
    }

    /// Loads blocks that were read, and requests the next ones.
    pub(super) fn continue_restoring(&mut self, now: Timestamp) {
        if self.pool.store().is_none() {
            return;
        }
        let mut i = 0;
        while let Some(sequence) = self.running.get_mut(i) {
            let n_found = sequence.continue_restoring(now, &mut self.pool);
            self.counters.cache_hit_tokens += n_found as u64;
            self.counters.restored_hit_tokens += n_found as u64;
            i += 1;
            if sequence.has_lost_state() {
                i -= 1;
                let sequence = self.running.remove(i).compute_instead(&mut self.pool);
                self.wait_again(sequence);
            }
        }
    }

    /// Plans the saves and exports of the step; whether it saves, loads or exports anything.
    pub(super) fn plan_traffic(&mut self) -> bool {
        self.pool.plan_saves();
        self.pool.plan_exports();
        self.pool.store().is_some_and(BlockStore::has_traffic)
    }

    /// Time at which a sequence stops waiting for blocks from the store.
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

    /// Queues blocks that another engine asks for. Without a store that it could ask, nothing happens.
    pub fn request_exports(&mut self, wanted: &[(ExportId, BlockHash)], now: Timestamp) {
        self.pool.request_exports(wanted, now);
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
