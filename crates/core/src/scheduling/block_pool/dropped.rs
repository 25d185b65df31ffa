//! Cached content that gave way to other content, for those who keep its bytes elsewhere. Recorded only where
//! somebody asks. Does not know who reads.

use crate::scheduling::batch::BlockId;
use crate::scheduling::block_hash::{BlockHash, BlockTokens};

/// Content that was cached in a block which has been given to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedBlock {
    /// The block that held it.
    pub block: BlockId,
    /// Its name.
    pub hash: BlockHash,
    /// The name of the prefix before it.
    pub parent: BlockHash,
    /// Its tokens.
    pub tokens: BlockTokens,
}

/// The contents dropped since they were taken last, at most as many as there are blocks. More mean that steps
/// have written to the blocks since, so that the list is void.
#[derive(Debug, Default)]
pub(super) struct DroppedBlocks {
    /// `None`: nobody asks.
    blocks: Option<Vec<DroppedBlock>>,
}

impl DroppedBlocks {
    /// Records from now on.
    pub fn begin(&mut self) {
        self.blocks.get_or_insert_default();
    }

    /// Notes that the content of one of `n_blocks` blocks was dropped.
    pub fn note(&mut self, dropped: DroppedBlock, n_blocks: usize) {
        let Some(blocks) = &mut self.blocks else { return };
        if blocks.len() >= n_blocks {
            blocks.clear();
        }
        blocks.push(dropped);
    }

    /// Hands out what was dropped.
    pub fn take(&mut self) -> Vec<DroppedBlock> {
        self.blocks.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
