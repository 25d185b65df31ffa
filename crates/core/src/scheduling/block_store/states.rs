//! Recurrent states in a store: each is kept in parts of a block's size, all of which must be there to read
//! it. Does not know the content of a state.

use super::BlockStore;
use crate::scheduling::batch::{MemorySlot, StoreSlot, StoredPlace};
use crate::scheduling::block_hash::{BlockContent, BlockHash};

/// A kept state of which parts are not saved yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnsavedState {
    slot: MemorySlot,
    /// Name of the prefix at whose end the state is.
    prefix: BlockHash,
    /// Number of parts that were saved.
    n_saved: u32,
}

impl BlockStore {
    /// Number of parts of a state.
    pub fn n_state_parts(&self) -> u32 {
        self.capacity.n_state_parts
    }

    /// Notes that a slot keeps the state at the end of a prefix.
    pub fn note_state(&mut self, slot: MemorySlot, prefix: BlockHash) {
        self.unsaved_states.retain(|unsaved| unsaved.slot != slot);
        if self.capacity.n_slots > 0 && self.capacity.n_state_parts > 0 {
            self.unsaved_states.push_back(UnsavedState { slot, prefix, n_saved: 0 });
        }
    }

    /// The slots of all parts of the state at the end of a prefix, if they can be read.
    pub fn find_state(&self, prefix: &BlockHash) -> Option<Vec<StoreSlot>> {
        let parts = 0..self.capacity.n_state_parts;
        let slots: Option<Vec<_>> =
            parts.map(|part| self.find(&BlockContent::of_state(prefix, part))).collect();
        slots.filter(|slots| !slots.is_empty())
    }

    /// Plans the saves of kept states as far as there is room.
    pub(super) fn plan_state_saves(&mut self, is_kept: impl Fn(MemorySlot, BlockHash) -> bool) {
        while !self.rests()
            && !self.is_busy()
            && let Some(&UnsavedState { slot, prefix, n_saved: part }) = self.unsaved_states.front()
        {
            if self.is_loaded(|to| matches!(to, StoredPlace::StatePart { slot: of, .. } if of == slot)) {
                return;
            }
            let is_left = part < self.capacity.n_state_parts && is_kept(slot, prefix);
            let content = BlockContent::of_state(&prefix, part);
            if is_left && self.save(StoredPlace::StatePart { slot, part }, &content) {
                self.unsaved_states[0].n_saved += 1;
            } else {
                self.unsaved_states.pop_front();
            }
        }
    }

    /// Notes that the latest state within a prefix was used, by the names of its blocks in order. Those
    /// before it are of use only to prompts that differ from it.
    pub(super) fn touch_state(&mut self, names: &[BlockHash]) {
        let is_stored = |name: &&BlockHash| self.by_hash.contains_key(&name.state_part(0));
        if self.capacity.n_state_parts == 0 {
            return;
        }
        let Some(&latest) = names.iter().rev().find(is_stored) else { return };
        for part in 0..self.capacity.n_state_parts {
            if let Some(&slot) = self.by_hash.get(&latest.state_part(part)) {
                self.set_used(slot, (self.now, u32::MAX));
            }
        }
    }
}
