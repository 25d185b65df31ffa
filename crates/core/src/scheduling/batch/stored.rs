//! Traffic of a step with a store: blocks whose bytes leave the executor's memory, and blocks that come back,
//! before it computes anything. Does not decide about them.

use super::{BlockId, MemorySlot};
use crate::scheduling::block_hash::BlockContent;

/// Place for the bytes of one block outside of the executor's memory: in a store, or for a block that comes
/// from another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreSlot(pub u32);

/// Bytes in the executor's memory that leave and enter it as one: as many as a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredPlace {
    /// Keys and values of a block.
    Block(BlockId),
    /// A part of a recurrent state, the last one padded.
    StatePart {
        /// Slot of the state.
        slot: MemorySlot,
        /// Index of the part.
        part: u32,
    },
}

/// A block whose bytes are to be written to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSave {
    /// Place that is read.
    pub from: StoredPlace,
    /// Slot of the store.
    pub slot: StoreSlot,
    /// The content of the place.
    pub content: BlockContent,
}

/// A place that gets the bytes of a slot, which wait in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLoad {
    /// The slot.
    pub slot: StoreSlot,
    /// The place that is overwritten.
    pub to: StoredPlace,
}

/// Number of one block that another engine has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u64);

/// A block whose bytes are to be given to another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExport {
    /// The place that is read.
    pub from: StoredPlace,
    /// Number of the export.
    pub export: ExportId,
    /// The content of the place.
    pub content: BlockContent,
}
