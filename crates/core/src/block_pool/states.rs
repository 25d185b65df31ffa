//! Who owns a slot of recurrent state. A slot is free, held (a running sequence writes it) or kept (a checkpoint: the state at the
//! end of a full block, found by the block's name). Does not know sequences and bytes.

use std::collections::HashMap;

use crate::batch::{StateCopy, StateSlot};
use crate::block_hash::BlockHash;

/// All slots of recurrent state of one executor; none where the model has no recurrent layers. There are about as many as sequences
/// that run, so that a search over all of them is cheap.
#[derive(Debug, Default)]
pub struct StatePool {
    slots: Vec<Slot>,
    by_name: HashMap<BlockHash, StateSlot>,
    /// How often a checkpoint was made or used.
    n_uses: u64,
    /// To be made by the next step, before it computes anything.
    copies: Vec<StateCopy>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    Free,
    Held,
    Kept {
        name: BlockHash,
        /// Sequences whose next or present step reads it.
        n_readers: u32,
        last_use: u64,
    },
}

impl Slot {
    fn is_available(&self) -> bool {
        matches!(self, Self::Free | Self::Kept { n_readers: 0, .. })
    }
}

impl StatePool {
    /// A pool of `n_slots` free slots.
    pub fn new(n_slots: u32) -> Self {
        Self { slots: vec![Slot::Free; n_slots as usize], ..Self::default() }
    }

    /// Whether there are no slots: the model has no recurrent layers.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Slots in all.
    pub fn n_total(&self) -> usize {
        self.slots.len()
    }

    /// Slots that sequences hold.
    pub fn n_held(&self) -> usize {
        self.slots.iter().filter(|slot| **slot == Slot::Held).count()
    }

    /// How many slots [`Self::allocate`] can give.
    pub fn n_available(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_available()).count()
    }

    /// Sequences that are about to read checkpoints.
    pub fn n_readers(&self) -> usize {
        let readers =
            |slot: &Slot| if let Slot::Kept { n_readers, .. } = slot { *n_readers as usize } else { 0 };
        self.slots.iter().map(readers).sum()
    }

    /// A slot to hold: a free one, else that of the checkpoint that was not used for longest and that nobody is about to read.
    pub fn allocate(&mut self) -> Option<StateSlot> {
        let age = |slot: &Slot| if let Slot::Kept { last_use, .. } = slot { *last_use } else { 0 };
        let available = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_available());
        let i = available.min_by_key(|(_, slot)| age(slot)).map(|(i, _)| i)?;
        self.hold(i);
        Some(StateSlot(i as u32))
    }

    /// Gives a held slot back.
    ///
    /// # Panics
    /// When it is not held.
    pub fn release(&mut self, slot: StateSlot) {
        let slot = &mut self.slots[slot.0 as usize];
        assert_eq!(*slot, Slot::Held, "a slot given back twice");
        *slot = Slot::Free;
    }

    /// Makes a held slot the checkpoint at the end of the block with this name. Where there is one, that one stays, and this slot
    /// becomes free.
    ///
    /// # Panics
    /// When it is not held.
    pub fn keep(&mut self, slot: StateSlot, name: BlockHash) {
        if self.by_name.contains_key(&name) {
            return self.release(slot);
        }
        let place = &mut self.slots[slot.0 as usize];
        assert_eq!(*place, Slot::Held, "only its holder can say what a slot holds");
        self.n_uses += 1;
        *place = Slot::Kept { name, n_readers: 0, last_use: self.n_uses };
        self.by_name.insert(name, slot);
    }

    /// The checkpoint at the end of the block with this name.
    pub fn find(&self, name: BlockHash) -> Option<StateSlot> {
        self.by_name.get(&name).copied()
    }

    /// A slot for a sequence that begins at the end of the block with this name, and the checkpoint that it reads first. The
    /// checkpoint becomes the sequence's own slot where there is no other.
    ///
    /// # Panics
    /// When there is no such checkpoint, or no slot to give.
    pub fn begin_at(&mut self, name: BlockHash) -> (StateSlot, StateSlot) {
        let checkpoint = self.find(name).expect("the checkpoint was found before");
        self.n_uses += 1;
        let n_uses = self.n_uses;
        if let Slot::Kept { n_readers, last_use, .. } = &mut self.slots[checkpoint.0 as usize] {
            (*n_readers, *last_use) = (*n_readers + 1, n_uses);
        }
        if let Some(slot) = self.allocate() {
            return (slot, checkpoint);
        }
        self.end_reading(checkpoint);
        let slot = self.allocate().expect("the planner counted the slots");
        assert_eq!(slot, checkpoint, "the checkpoint is the only one available");
        (slot, checkpoint)
    }

    /// A sequence has read the checkpoint that it began from.
    ///
    /// # Panics
    /// When no sequence was about to read it.
    pub fn end_reading(&mut self, checkpoint: StateSlot) {
        let Slot::Kept { n_readers, .. } = &mut self.slots[checkpoint.0 as usize] else {
            panic!("a checkpoint that is read was given away")
        };
        *n_readers = n_readers.checked_sub(1).expect("a checkpoint read once more than begun");
    }

    /// Has the next step copy a state before it computes anything.
    pub fn copy_later(&mut self, copy: StateCopy) {
        self.copies.push(copy);
    }

    /// The copies that the next step has to make; whoever takes them makes them.
    pub fn take_copies(&mut self) -> impl Iterator<Item = StateCopy> {
        self.copies.drain(..)
    }

    /// Forgets all checkpoints and copies. For when the bytes behind the slots are lost.
    pub fn forget(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| **slot != Slot::Held) {
            *slot = Slot::Free;
        }
        self.by_name.clear();
        self.copies.clear();
    }

    /// Checks that names and checkpoints agree.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut n_kept = 0;
        for (i, slot) in self.slots.iter().enumerate() {
            let Slot::Kept { name, .. } = slot else { continue };
            n_kept += 1;
            if self.find(*name) != Some(StateSlot(i as u32)) {
                return Err(format!("state {i} is not found under its name"));
            }
        }
        if n_kept == self.by_name.len() { Ok(()) } else { Err("a name leads to no state".into()) }
    }

    fn hold(&mut self, i: usize) {
        if let Slot::Kept { name, .. } = std::mem::replace(&mut self.slots[i], Slot::Held) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BLOCK_TOKENS;
    use crate::request::TenantId;

    fn name(token: u32) -> BlockHash {
        BlockHash::root(&TenantId::anonymous(), None, None).child(&[token; BLOCK_TOKENS])
    }

    fn keep(pool: &mut StatePool, token: u32) -> StateSlot {
        let slot = pool.allocate().expect("a slot is left");
        pool.keep(slot, name(token));
        slot
    }

    #[test]
    fn the_least_recently_used_checkpoint_gives_way() {
        let mut pool = StatePool::new(3);
        let (first, second) = (keep(&mut pool, 1), keep(&mut pool, 2));
        let (own, from) = pool.begin_at(name(1));
        assert_eq!((from, pool.n_readers()), (first, 1));
        pool.end_reading(from);
        assert_eq!(pool.allocate(), Some(second));
        assert_eq!((pool.find(name(1)), pool.find(name(2))), (Some(first), None));
        pool.release(own);
        pool.check_invariants().unwrap();
    }

    #[test]
    fn a_checkpoint_that_is_about_to_be_read_stays() {
        let mut pool = StatePool::new(2);
        let kept = keep(&mut pool, 1);
        let (own, from) = pool.begin_at(name(1));
        assert_ne!(own, from);
        assert_eq!((pool.allocate(), pool.n_available()), (None, 0));
        pool.end_reading(from);
        assert_eq!(pool.allocate(), Some(kept));
    }

    #[test]
    fn the_only_slot_is_taken_over() {
        let mut pool = StatePool::new(1);
        let kept = keep(&mut pool, 1);
        assert_eq!(pool.begin_at(name(1)), (kept, kept));
        assert_eq!((pool.find(name(1)), pool.n_held(), pool.n_readers()), (None, 1, 0));
        pool.check_invariants().unwrap();
    }
}
