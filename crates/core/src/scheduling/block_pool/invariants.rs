//! Invariants of a pool after each operation. For tests, and for schedulers that check themselves.

use super::marks::GroupMark;
use super::{BlockPool, Slot};
use crate::scheduling::batch::BlockId;

impl BlockPool {
    /// Checks that every block is in exactly one state and that the counts agree.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut seen = vec![0_u8; self.n_total()];
        for block in &self.free {
            seen[block.0 as usize] += 1;
            let slot = &self.slots[block.0 as usize];
            if slot.n_references > 0 || slot.content.is_some() {
                return Err(format!("{block:?} is free but referenced or published"));
            }
        }
        let cached = self.cached.blocks(&self.slots);
        for block in &cached {
            seen[block.0 as usize] += 1;
            let slot = &self.slots[block.0 as usize];
            if slot.n_references > 0 || slot.content.is_none() {
                return Err(format!("{block:?} is cached but referenced or nameless"));
            }
        }
        let n_cached = cached.len();
        if n_cached != self.n_cached() {
            return Err(format!("{n_cached} cached blocks, counted {}", self.n_cached()));
        }
        let n_used = self.slots.iter().filter(|s| s.n_references > 0).count();
        if n_used + n_cached + self.free.len() != self.n_total() || seen.iter().any(|&n| n > 1) {
            let (n_free, n_total) = (self.free.len(), self.n_total());
            return Err(format!("{n_used} used + {n_cached} cached + {n_free} free != {n_total}"));
        }
        self.states.check_invariants()?;
        self.check_marks()?;
        self.store.as_ref().map_or(Ok(()), |store| store.check_invariants())?;
        self.check_names()
    }

    fn check_marks(&self) -> Result<(), String> {
        for slot in self.slots.iter().filter(|slot| slot.mark.is_some()) {
            if slot.content.is_none() {
                return Err("a block without content is marked".into());
            }
            if slot.n_references == 0 && !matches!(self.cached.mark(slot), GroupMark::Until(..)) {
                return Err("a marked block is in an unmarked group".into());
            }
        }
        let of_slot = |slot: &Slot| Some((slot.mark?.owner, slot.n_references == 0));
        self.cached.marks().check_invariants(self.slots.iter().filter_map(of_slot))
    }

    fn check_names(&self) -> Result<(), String> {
        let mut n_named = 0;
        let mut n_children = vec![0; self.n_total()];
        for parent in self.slots.iter().filter_map(|slot| self.by_hash.get(&slot.content?.parent)) {
            n_children[parent.0 as usize] += 1;
        }
        if let Some(i) = (0..self.n_total()).find(|&i| self.slots[i].n_children > n_children[i]) {
            return Err(format!("block {i} counts {} children", self.slots[i].n_children));
        }
        for (i, slot) in self.slots.iter().enumerate() {
            let Some(content) = &slot.content else { continue };
            n_named += 1;
            if self.by_hash.get(&content.hash) != Some(&BlockId(i as u32)) {
                return Err(format!("block {i} is not found under its name"));
            }
        }
        if n_named == self.by_hash.len() { Ok(()) } else { Err("a name leads to no block".into()) }
    }
}
