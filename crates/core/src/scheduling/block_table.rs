//! The blocks of one sequence, in the order of its positions. It grows at its end and returns blocks from its
//! end. Does not know the content of blocks.

use crate::scheduling::batch::{BLOCK_TOKENS, BlockId};
use crate::scheduling::block_pool::BlockPool;

/// Number of blocks that `n_tokens` tokens need.
pub const fn blocks_for(n_tokens: usize) -> usize {
    n_tokens.div_ceil(BLOCK_TOKENS)
}

/// The blocks of one sequence: position `p` is in block `p / 16` of the table. Each entry is one reference
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

    /// All blocks of the sequence, in order.
    pub fn as_slice(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the table has no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Replaces the first blocks by `others`, whose references now belong to the table, and releases the
    /// replaced ones.
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

    /// Releases every reference, the last block first, so that the end of a prefix is evicted before its
    /// beginning.
    pub fn release(mut self, pool: &mut BlockPool) {
        self.truncate(0, pool);
    }
}
