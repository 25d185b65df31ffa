//! The recurrent state of a running sequence: its slot, the slot that its next step reads, and checkpoints
//! at ends of blocks, where the state is kept for other sequences. Does not know the content of a state.

use super::{Running, Sequence, Start, StateSource, Waiting};
use crate::scheduling::batch::{BLOCK_TOKENS, MemorySlot, SlotCopy, StateSave, StateShare, StoredPlace};
use crate::scheduling::block_pool::BlockPool;

/// Slots of recurrent state that a running sequence holds.
#[derive(Debug)]
pub(super) struct RecurrentState {
    /// Slot of the sequence.
    slot: MemorySlot,
    /// Slot that its next step reads; `None` for zeros.
    from: Option<MemorySlot>,
    /// The checkpoint that it started from, until a step has read it.
    reading: Option<MemorySlot>,
    /// Numbers of tokens after which its state is kept, in increasing order; 0 for none. Multiples of a
    /// block's tokens.
    checkpoints: [usize; 2],
    /// Slots that steps in flight fill, with the numbers of tokens.
    saves: [Option<(usize, MemorySlot)>; 2],
}

impl RecurrentState {
    /// The next number of tokens beyond `n_tokens` after which the state is kept.
    fn next_checkpoint(&self, n_tokens: usize) -> Option<usize> {
        self.checkpoints.into_iter().find(|&checkpoint| checkpoint > n_tokens)
    }
}

impl Sequence<Waiting> {
    /// Number of the first `n_hits` blocks after which it can continue: if the model has recurrent layers,
    /// those of the longest prefix that ends at a checkpoint.
    pub fn n_checkpointed(&mut self, pool: &BlockPool, n_hits: usize) -> usize {
        if pool.states().is_empty() {
            return n_hits;
        }
        let is_kept = |n: &usize| pool.states().find(self.block_content(n - 1).hash).is_some();
        (1..=n_hits).rev().find(is_kept).unwrap_or(0)
    }

    /// Where the state after its first `n_blocks` blocks is, in memory or in the store.
    pub fn find_state(&mut self, n_blocks: usize, pool: &BlockPool) -> Option<StateSource> {
        let prefix = self.block_content(n_blocks - 1).hash;
        match pool.states().find(prefix) {
            Some(_) => Some(StateSource::Memory),
            None => pool.store()?.find_state(&prefix).map(StateSource::Store),
        }
    }

    /// Creates the state with which it starts after its first `n_hits` blocks or those that come back. The
    /// state is kept at two places: at the end of its last full block that leaves a token to compute, where
    /// the same or a longer prompt continues; and where its cached blocks end, since prompts with a common
    /// beginning differ there.
    pub(super) fn begin_state(
        &mut self,
        n_hits: usize,
        start: &Start,
        pool: &mut BlockPool,
    ) -> Option<RecurrentState> {
        if pool.states().is_empty() {
            return None;
        }
        let last = (self.tokens().len() - 1) / BLOCK_TOKENS;
        let restorable = &start.restorable;
        let n_begun = if restorable.is_empty() { start.n_begun } else { n_hits + restorable.n_blocks() };
        let comes_back = matches!(restorable.state, Some(StateSource::Store(_) | StateSource::Peer));
        let mut n_cached = n_begun;
        while n_cached < last {
            let content = self.block_content(n_cached);
            if pool.find(&content).is_none() {
                break;
            }
            n_cached += 1;
        }
        let (slot, from) = match n_begun.checked_sub(1).filter(|_| !comes_back) {
            Some(last_hit) => {
                let (slot, from) = pool.states_mut().begin_at(self.block_content(last_hit).hash);
                (slot, Some(from))
            }
            None => (pool.states_mut().allocate().expect("the planner counted the slots"), None),
        };
        let branch = if n_cached < last { n_cached } else { 0 };
        let checkpoints = [branch, last].map(|n_blocks| n_blocks * BLOCK_TOKENS);
        let reading = from.filter(|&from| from != slot);
        Some(RecurrentState { slot, from, reading, checkpoints, saves: [None; 2] })
    }

    /// Whether `other` is computing a later state than that after the first `n_hits` blocks, from which
    /// this sequence could start; `None` if the model has no recurrent layers.
    pub(super) fn could_share_state(&self, n_hits: usize, other: &Sequence<Running>) -> Option<bool> {
        let state = other.state.recurrent.as_ref()?;
        let is_shared =
            |end: usize| self.root == other.root && self.tokens().len() > end && self.begins_like(other, end);
        let n_tokens = other.n_computed().max(n_hits * BLOCK_TOKENS);
        let restored = Some(other.restored_end()).filter(|&end| end > n_tokens);
        Some(state.next_checkpoint(n_tokens).into_iter().chain(restored).any(is_shared))
    }
}

impl Sequence<Running> {
    /// Plans the use of its state by a step that computes its next `n_tokens` tokens; `None` if the model
    /// has no recurrent layers.
    pub(crate) fn plan_state(&mut self, n_tokens: usize, pool: &mut BlockPool) -> Option<StateShare> {
        let (start, checkpoints) = (self.n_planned(), self.state.recurrent.as_ref()?.checkpoints);
        let mut saves = [None; 2];
        for (checkpoint, save) in checkpoints.into_iter().zip(&mut saves) {
            if checkpoint <= start || checkpoint > start + n_tokens {
                continue;
            }
            let name = self.block_content(checkpoint / BLOCK_TOKENS - 1).hash;
            if pool.states().find(name).is_none() {
                *save = pool.states_mut().allocate().map(|slot| (checkpoint, slot));
            }
        }
        let state = self.state.recurrent.as_mut()?;
        for (held, save) in state.saves.iter_mut().zip(saves) {
            *held = held.or(save);
        }
        let to_save = |(checkpoint, slot)| StateSave { n_tokens: (checkpoint - start) as u32, slot };
        let from = state.from.replace(state.slot);
        Some(StateShare { from, to: state.slot, saves: saves.map(|save| save.map(to_save)) })
    }

    /// Publishes checkpoints of the saved states whose tokens are computed.
    pub(super) fn publish_states(&mut self, pool: &mut BlockPool) {
        let n_computed = self.state.n_computed;
        let Some(state) = &mut self.state.recurrent else { return };
        state.reading.take().into_iter().for_each(|checkpoint| pool.states_mut().end_reading(checkpoint));
        let mut saves = std::mem::take(&mut state.saves);
        for save in &mut saves {
            if let Some((checkpoint, slot)) = save.take_if(|(checkpoint, _)| *checkpoint <= n_computed) {
                pool.keep_state(slot, self.block_content(checkpoint / BLOCK_TOKENS - 1).hash);
            }
        }
        if let Some(state) = &mut self.state.recurrent {
            state.saves = saves;
        }
    }

    /// A part of its slot, which gets a state that comes back.
    pub(super) fn state_part(&self, part: u32) -> StoredPlace {
        let slot = self.state.recurrent.as_ref().expect("a state comes back for recurrent layers").slot;
        StoredPlace::StatePart { slot, part }
    }

    /// Continues after the tokens that came back: from the state that was loaded into its slot, which is kept
    /// for others, or from the checkpoint that it has begun to read.
    pub(super) fn take_restored_state(&mut self, is_loaded: bool, pool: &mut BlockPool) {
        let prefix = self.block_content(self.state.n_computed / BLOCK_TOKENS - 1).hash;
        if let Some(state) = self.state.recurrent.as_mut().filter(|_| is_loaded) {
            pool.keep_state(state.slot, prefix);
            let (slot, from) = pool.states_mut().begin_at(prefix);
            (state.slot, state.from) = (slot, Some(from));
            state.reading = Some(from).filter(|from| *from != slot);
        }
    }

    /// Releases the sequence's slots of state.
    pub(super) fn release_state(&mut self, pool: &mut BlockPool) {
        let Some(state) = self.state.recurrent.take() else { return };
        state.reading.into_iter().for_each(|checkpoint| pool.states_mut().end_reading(checkpoint));
        let saved = state.saves.into_iter().flatten().map(|(_, slot)| slot);
        saved.chain([state.slot]).for_each(|slot| pool.states_mut().release(slot));
    }

    /// Continues from the state of `parent`, which has computed equally many tokens, after the next step
    /// has copied it.
    pub(super) fn take_state_of(&mut self, parent: &Self, pool: &mut BlockPool) {
        if let (Some(state), Some(parent)) = (&mut self.state.recurrent, &parent.state.recurrent) {
            pool.states_mut().copy_later(SlotCopy { from: parent.slot, to: state.slot });
        }
    }

    /// Number of slots of recurrent state that it holds, and whether it is about to read a checkpoint.
    pub fn n_state_slots(&self) -> (usize, bool) {
        let Some(state) = &self.state.recurrent else { return (0, false) };
        (1 + state.saves.iter().flatten().count(), state.reading.is_some())
    }
}
