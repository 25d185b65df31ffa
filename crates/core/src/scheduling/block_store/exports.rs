//! Blocks that other engines have asked for by name. A step copies a few of them before it computes anything,
//! so that nothing here waits for another engine, and no block is held for one: a block that has given way
//! meanwhile is missing. Does not know who asks.

use std::collections::VecDeque;

use super::{BlockStore, SlotState, StoreOrder};
use crate::scheduling::batch::{BlockExport, ExportId, StoredPlace};
use crate::scheduling::block_hash::{BlockContent, BlockHash};

/// Blocks that were asked for, and those that the step that is being planned copies.
#[derive(Debug, Default)]
pub(super) struct Exports {
    queue: VecDeque<(ExportId, BlockHash)>,
    pub planned: Vec<BlockExport>,
}

impl BlockStore {
    /// Queues blocks that another engine asks for; those for which there is no room are missing.
    pub fn request_exports(&mut self, wanted: &[(ExportId, BlockHash)]) {
        let room = (self.capacity.max_exports as usize).saturating_sub(self.exports.queue.len());
        let (queued, refused) = wanted.split_at(room.min(wanted.len()));
        self.exports.queue.extend(queued);
        self.orders.extend(refused.iter().map(|(export, _)| StoreOrder::Missing(*export)));
    }

    /// Plans the exports of a step: of blocks in the executor's memory. Blocks on disk are read from there.
    pub(in crate::scheduling) fn plan_exports(
        &mut self,
        find: impl Fn(&BlockHash) -> Option<(StoredPlace, BlockContent)>,
    ) {
        while self.exports.planned.len() < self.capacity.max_exports_per_step as usize
            && let Some((export, hash)) = self.exports.queue.pop_front()
        {
            if let Some((from, content)) = find(&hash) {
                self.exports.planned.push(BlockExport { from, export, content });
            } else if let Some(&slot) = self.by_hash.get(&hash)
                && self.slots[slot.0 as usize].state != SlotState::Writing
            {
                self.orders.push(StoreOrder::ReadForPeer(export, slot, hash));
            } else {
                self.orders.push(StoreOrder::Missing(export));
                continue;
            }
            self.counters.served_blocks += 1;
        }
    }

    /// Takes the exports of the planned step.
    pub fn take_exports(&mut self) -> impl Iterator<Item = BlockExport> {
        self.exports.planned.drain(..)
    }
}
