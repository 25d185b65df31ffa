//! Cached content that was replaced by other content, for callers that keep its bytes elsewhere. Recorded
//! only on request. Does not know the readers.

use crate::scheduling::batch::BlockId;
use crate::scheduling::block_hash::BlockContent;

/// Content that was cached in a block which has since been reallocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedBlock {
    /// Block that held the content.
    pub block: BlockId,
    /// The dropped content.
    pub content: BlockContent,
}

/// Contents dropped since the last call, at most the number of blocks. With more, steps have written to the
/// blocks since, so that the list is void.
#[derive(Debug, Default)]
pub(super) struct DroppedBlocks {
    /// Recorded contents; `None` if they are not recorded.
    blocks: Option<Vec<DroppedBlock>>,
}

impl DroppedBlocks {
    /// Starts recording.
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

    /// Takes the recorded contents.
    pub fn take(&mut self) -> Vec<DroppedBlock> {
        self.blocks.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
