//! Blocks that another engine was asked for. Each is reported to the engine once, however its pull ends. Does
//! not know connections.

use std::collections::VecDeque;
use std::fmt::Debug;

use throng_core::request::PeerId;
use throng_core::scheduling::batch::StoreSlot;
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::BlockHash;

/// Asks other engines for blocks.
pub trait PullBlocks: Debug + Send + Sync {
    /// Begins to bring blocks, without waiting. It must end within bounded time, and hold few of them at a
    /// time: the engine orders no more than it has room for.
    fn pull(&self, pull: Pull);
}

/// Receiver of the blocks of pulls.
pub(super) trait Landing: Debug + Send {
    /// Layout of the blocks.
    fn layout(&self) -> &BlockLayout;

    /// Reports the bytes of a slot's block; `None` if it did not come.
    fn report(&self, slot: StoreSlot, bytes: Option<Vec<u8>>);
}

/// Blocks of one engine that are wanted, in the order in which they follow each other. Those that did not
/// come have failed when it is dropped.
#[derive(Debug)]
pub struct Pull {
    peer: PeerId,
    blocks: VecDeque<(StoreSlot, BlockHash)>,
    landing: Box<dyn Landing>,
}

impl Pull {
    /// Creates a pull.
    pub(super) fn new(
        peer: PeerId,
        blocks: VecDeque<(StoreSlot, BlockHash)>,
        landing: Box<dyn Landing>,
    ) -> Self {
        Self { peer, blocks, landing }
    }

    /// The engine that is said to have the blocks.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Layout that the blocks must have.
    pub fn layout(&self) -> &BlockLayout {
        self.landing.layout()
    }

    /// Names of the blocks that have not come.
    pub fn names(&self) -> impl Iterator<Item = BlockHash> {
        self.blocks.iter().map(|(_, hash)| *hash)
    }

    /// Number of blocks that have not come.
    pub fn n_missing(&self) -> usize {
        self.blocks.len()
    }

    /// Takes the bytes of the next block; `false`, which ends the pull, if they are not those of a block, or
    /// of another one.
    pub fn land(&mut self, hash: &BlockHash, bytes: Vec<u8>) -> bool {
        let is_next = self.blocks.front().is_some_and(|(_, next)| next == hash);
        if !is_next || bytes.len() != self.layout().n_bytes {
            return false;
        }
        if let Some((slot, _)) = self.blocks.pop_front() {
            self.landing.report(slot, Some(bytes));
        }
        true
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        for (slot, _) in self.blocks.drain(..) {
            self.landing.report(slot, None);
        }
    }
}
