//! Blocks that a step saves to a store outside of the executor's memory, and blocks that it brings back,
//! before it computes anything. Does not decide about them.

use super::BlockId;
use crate::scheduling::block_hash::BlockContent;

/// Place for one block in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreSlot(pub u32);

/// A block whose bytes are to be written to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSave {
    /// The block that is read.
    pub block: BlockId,
    /// The place in the store.
    pub slot: StoreSlot,
    /// The content of the block.
    pub content: BlockContent,
}

/// A block that gets the bytes of a slot of the store, which have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLoad {
    /// The place in the store.
    pub slot: StoreSlot,
    /// The block that is overwritten.
    pub block: BlockId,
}
