//! Blocks that come from other engines: each has a slot from the time when a sequence wants it until it is
//! loaded or given up. Does not know how they come.

use super::{BlockStore, Slot, SlotState};
use crate::request::PeerId;
use crate::scheduling::batch::StoreSlot;
use crate::scheduling::block_hash::BlockContent;
use crate::time::Timestamp;

/// Minimum number of blocks that another engine must have beyond those here to be asked: fewer are computed
/// in about the time of a round trip.
pub const LEAST_PULLED_BLOCKS: usize = 8;

/// Slots of blocks that come from other engines, which stand behind those of the disk.
#[derive(Debug, Default)]
pub(super) struct Landing {
    pub free: Vec<StoreSlot>,
    /// Slots that the newest step loads: another block may get them once that step has taken their bytes.
    landed: Vec<StoreSlot>,
    /// Blocks that were asked for and not loaded.
    pub n_pulling: u32,
    /// Whether no more are asked for until half of them have come, so that many are asked for at a time.
    is_full: bool,
}

impl Landing {
    /// Counts a block that is asked for; `false` if too many are.
    pub fn ask(&mut self, max_pulls: u32) -> bool {
        self.is_full =
            if self.is_full { self.n_pulling > max_pulls / 2 } else { self.n_pulling >= max_pulls };
        self.n_pulling += u32::from(!self.is_full);
        !self.is_full
    }
}

impl BlockStore {
    /// Whether other engines may be asked.
    pub fn may_pull(&self) -> bool {
        self.capacity.max_pulls > 0
    }

    /// Gives a slot to a content that another engine is said to hold, for a sequence that wants it; `None`
    /// if as many sequences want blocks as the executor has.
    pub fn want_from(&mut self, peer: PeerId, content: BlockContent) -> Option<StoreSlot> {
        let used = (Timestamp::default(), 0);
        let wanted = Slot { content: Some(content), used, state: SlotState::Wanted, peer: Some(peer) };
        if let Some(slot) = self.landing.free.pop() {
            self.slots[slot.0 as usize] = wanted;
            return Some(slot);
        }
        let slot = StoreSlot(u32::try_from(self.slots.len()).ok()?);
        let most = self.n_total() + self.max_unsaved + 4 * self.capacity.n_state_parts as usize;
        (self.slots.len() < most).then(|| {
            self.slots.push(wanted);
            slot
        })
    }

    /// The engine from which the content of a slot comes; `None` in a slot of the disk.
    pub fn peer_of(&self, slot: StoreSlot) -> Option<PeerId> {
        self.slots[slot.0 as usize].peer
    }

    /// Notes that the planned step loads another engine's block.
    pub(super) fn land(&mut self, slot: StoreSlot) {
        self.note_arrived(slot);
        self.counters.pulled_blocks += 1;
        self.slots[slot.0 as usize].state = SlotState::Landed;
        self.landing.landed.push(slot);
    }

    /// Frees the slots of the step before, which has taken their bytes.
    pub(super) fn free_landed(&mut self) {
        while let Some(slot) = self.landing.landed.pop() {
            self.forget(slot);
        }
    }

    /// Checks that slots and counts agree.
    pub(super) fn check_landing(&self) -> Result<(), String> {
        let slots = &self.slots[self.n_total()..];
        let count = |of: fn(SlotState) -> bool| slots.iter().filter(|held| of(held.state)).count();
        let is_pulling = |state| matches!(state, SlotState::Reading | SlotState::Read | SlotState::Abandoned);
        let (n_pulling, n_free) = (count(is_pulling), count(|state| state == SlotState::Settled));
        let n_landed = count(|state| state == SlotState::Landed);
        let counts = (self.landing.n_pulling as usize, self.landing.free.len(), self.landing.landed.len());
        if counts != (n_pulling, n_free, n_landed) {
            return Err(format!("{counts:?} != {:?}", (n_pulling, n_free, n_landed)));
        }
        Ok(())
    }
}
