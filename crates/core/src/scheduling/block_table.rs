//! The blocks of one sequence, in the order of its positions. It grows at its end and gives blocks back from
//! its end. Does not know what the blocks hold.

use crate::scheduling::batch::{BLOCK_TOKENS, BlockId};
use crate::scheduling::block_pool::BlockPool;

/// Number of blocks that `n_tokens` tokens need.
pub const fn blocks_for(n_tokens: usize) -> usize {
    n_tokens.div_ceil(BLOCK_TOKENS)
}

/// The blocks of one sequence: position `p` lives in block `p / 16` of the table. Each entry is one reference
/// held in the pool; dropping a table without [`BlockTable::release`] leaks its blocks.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// An empty table with room for `n_blocks` entries.
    pub fn with_capacity(n_blocks: usize) -> Self {
        Self { blocks: Vec::with_capacity(n_blocks) }
    }

    /// Appends a block whose reference now belongs to the table.
    pub fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// All blocks, in order.
    pub fn as_slice(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Releases the first blocks, as many as `others`, and puts `others` in their place, whose references
    /// now belong to the table.
    pub fn replace_leading(&mut self, others: &[BlockId], pool: &mut BlockPool) {
        for (block, &other) in self.blocks.iter_mut().zip(others) {
            pool.release(std::mem::replace(block, other));
        }
    }

    /// Gives back the blocks after the first `n_blocks`.
    pub fn truncate(&mut self, n_blocks: usize, pool: &mut BlockPool) {
        while self.blocks.len() > n_blocks {
            self.blocks.pop().into_iter().for_each(|block| pool.release(block));
        }
    }

    /// Gives every reference back, the last block first, so that the end of a prefix leaves the cache before
    /// its beginning does.
    pub fn release(mut self, pool: &mut BlockPool) {
        self.truncate(0, pool);
    }
}
