//! Ownership of slots of an executor's memory beside KV blocks: of recurrent states, or of embeddings of an
//! encoder. A slot is free, held (a sequence writes it) or kept: its content has a name, by which lookups
//! find it. A checkpoint of a recurrent state has the name of the block at whose end it was made;
//! embeddings have the digest of their content. Does not know sequences and bytes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::scheduling::batch::{MemorySlot, SlotCopy};

/// All slots of one kind of memory of an executor; empty if the model does not need it. `N` is the type of
/// names. There are about as many slots as running sequences, so that a search over all of them is cheap.
#[derive(Debug)]
pub struct SlotPool<N> {
    slots: Vec<Slot<N>>,
    by_name: HashMap<N, MemorySlot>,
    /// Number of times that a kept content was created or used.
    n_uses: u64,
    /// Copies that the next step makes first.
    copies: Vec<SlotCopy>,
    /// Names of contents that gave way since the last call of [`Self::take_dropped`], at most two for each
    /// slot.
    dropped: Vec<N>,
}

impl<N> Default for SlotPool<N> {
    /// Creates a pool without slots.
    fn default() -> Self {
        let (slots, copies, dropped) = Default::default();
        Self { slots, by_name: HashMap::new(), n_uses: 0, copies, dropped }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot<N> {
    Free,
    Held,
    Kept {
        name: N,
        /// Number of sequences whose next or present step reads it.
        n_readers: u32,
        last_use: u64,
    },
}

impl<N> Slot<N> {
    fn is_available(&self) -> bool {
        matches!(self, Self::Free | Self::Kept { n_readers: 0, .. })
    }
}

impl<N: Copy + Debug + Eq + Hash> SlotPool<N> {
    /// Creates a pool of `n_slots` free slots.
    pub fn new(n_slots: u32) -> Self {
        Self { slots: vec![Slot::Free; n_slots as usize], ..Self::default() }
    }

    /// Whether there are no slots: the model does not need this memory.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of all slots.
    pub fn n_total(&self) -> usize {
        self.slots.len()
    }

    /// Number of slots that sequences hold.
    pub fn n_held(&self) -> usize {
        self.slots.iter().filter(|slot| **slot == Slot::Held).count()
    }

    /// Number of slots that [`Self::allocate`] can give.
    pub fn n_available(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_available()).count()
    }

    /// Number of sequences that are about to read kept contents.
    pub fn n_readers(&self) -> usize {
        let readers =
            |slot: &Slot<N>| if let Slot::Kept { n_readers, .. } = slot { *n_readers as usize } else { 0 };
        self.slots.iter().map(readers).sum()
    }

    /// Allocates a slot: a free one, else that of the least recently used kept content that no sequence is
    /// about to read.
    pub fn allocate(&mut self) -> Option<MemorySlot> {
        let age = |slot: &Slot<N>| if let Slot::Kept { last_use, .. } = slot { *last_use } else { 0 };
        let available = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_available());
        let i = available.min_by_key(|(_, slot)| age(slot)).map(|(i, _)| i)?;
        self.hold(i);
        Some(MemorySlot(i as u32))
    }

    /// Releases a held slot.
    ///
    /// # Panics
    /// When it is not held.
    pub fn release(&mut self, slot: MemorySlot) {
        let slot = &mut self.slots[slot.0 as usize];
        assert_eq!(*slot, Slot::Held, "a slot given back twice");
        *slot = Slot::Free;
    }

    /// Keeps the content of a held slot under a name. If another slot has this name already, that slot stays,
    /// and this one becomes free.
    ///
    /// # Panics
    /// When it is not held.
    pub fn keep(&mut self, slot: MemorySlot, name: N) {
        if self.by_name.contains_key(&name) {
            return self.release(slot);
        }
        let place = &mut self.slots[slot.0 as usize];
        assert_eq!(*place, Slot::Held, "only its holder can say what a slot holds");
        self.n_uses += 1;
        *place = Slot::Kept { name, n_readers: 0, last_use: self.n_uses };
        self.by_name.insert(name, slot);
    }

    /// Slot with the content of this name.
    pub fn find(&self, name: N) -> Option<MemorySlot> {
        self.by_name.get(&name).copied()
    }

    /// Slot with the content of this name, which is not reallocated until [`Self::end_reading`].
    pub fn begin_reading(&mut self, name: N) -> Option<MemorySlot> {
        let kept = self.find(name)?;
        self.n_uses += 1;
        if let Slot::Kept { n_readers, last_use, .. } = &mut self.slots[kept.0 as usize] {
            (*n_readers, *last_use) = (*n_readers + 1, self.n_uses);
        }
        Some(kept)
    }

    /// Allocates a slot for a sequence that continues from the content with this name, and returns it with
    /// the slot to read first. If no other slot can be allocated, the sequence takes the read slot itself.
    ///
    /// # Panics
    /// When there is no such content, or no slot to give.
    pub fn begin_at(&mut self, name: N) -> (MemorySlot, MemorySlot) {
        let checkpoint = self.begin_reading(name).expect("the checkpoint was found before");
        if let Some(slot) = self.allocate() {
            return (slot, checkpoint);
        }
        self.end_reading(checkpoint);
        let slot = self.allocate().expect("the planner counted the slots");
        assert_eq!(slot, checkpoint, "the checkpoint is the only one available");
        (slot, checkpoint)
    }

    /// Notes that a sequence has read a kept content.
    ///
    /// # Panics
    /// When no sequence was about to read it.
    pub fn end_reading(&mut self, slot: MemorySlot) {
        let Slot::Kept { n_readers, .. } = &mut self.slots[slot.0 as usize] else {
            panic!("a slot that is read was given away")
        };
        *n_readers = n_readers.checked_sub(1).expect("a slot read once more than begun");
    }

    /// Adds a copy of a slot, which the next step makes first.
    pub fn copy_later(&mut self, copy: SlotCopy) {
        self.copies.push(copy);
    }

    /// Takes the copies that the next step must make.
    pub fn take_copies(&mut self) -> impl Iterator<Item = SlotCopy> {
        self.copies.drain(..)
    }

    /// Drops all kept contents and copies, for executors that have lost the bytes of the slots.
    pub fn forget(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| **slot != Slot::Held) {
            *slot = Slot::Free;
        }
        self.by_name.clear();
        self.copies.clear();
    }

    /// Checks that names and slots agree.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut n_kept = 0;
        for (i, slot) in self.slots.iter().enumerate() {
            let Slot::Kept { name, .. } = slot else { continue };
            n_kept += 1;
            if self.find(*name) != Some(MemorySlot(i as u32)) {
                return Err(format!("slot {i} is not found under its name"));
            }
        }
        if n_kept == self.by_name.len() { Ok(()) } else { Err("a name leads to no slot".into()) }
    }

    fn hold(&mut self, i: usize) {
        if let Slot::Kept { name, .. } = std::mem::replace(&mut self.slots[i], Slot::Held) {
            self.by_name.remove(&name);
            if self.dropped.len() < 2 * self.slots.len() {
                self.dropped.push(name);
            }
        }
    }

    /// Names of kept contents.
    pub fn names(&self) -> impl Iterator<Item = N> {
        self.slots
            .iter()
            .filter_map(|slot| if let Slot::Kept { name, .. } = slot { Some(*name) } else { None })
    }

    /// Takes the names of contents that gave way and are not kept again.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = N> {
        let is_gone = |name: &N| !self.by_name.contains_key(name);
        std::mem::take(&mut self.dropped).into_iter().filter(is_gone)
    }
}
