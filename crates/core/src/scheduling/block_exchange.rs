//! Bytes of blocks that another executor can import, with their layout, and the reasons for refusing them.
//! Does not know how they are sent or encoded.

use std::sync::Arc;

use crate::scheduling::batch::BlockId;
use crate::scheduling::block_hash::BlockNamespace;

/// Layout of a block's bytes in an executor. Blocks are exchanged only between executors with equal layouts,
/// in which their bits are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    /// The fingerprint of the model: equal for models whose outputs are equal to the bit.
    pub model: Arc<str>,
    /// The type of keys and values.
    pub kv_type: Arc<str>,
    /// The name of the layout, with its version.
    pub name: Arc<str>,
    /// Bytes of one block over all layers.
    pub n_bytes: usize,
    /// Number of parts, of a block's size, in which a recurrent state is exchanged; 0 for a model without.
    pub n_state_parts: u32,
}

impl BlockLayout {
    /// The namespace of the blocks' names. It does not depend on the layout: a block has one name in every
    /// layout.
    pub fn namespace(&self) -> BlockNamespace {
        BlockNamespace::new(&self.model, &self.kv_type)
    }

    /// Checks that blocks in the layout `theirs` can be taken over.
    ///
    /// # Errors
    /// The first difference: in the model, the type of keys and values, the name of the layout, or the size
    /// of a block.
    pub fn check(&self, theirs: &Self) -> Result<(), BlockExchangeError> {
        let mismatch =
            |ours: &Arc<str>, theirs: &Arc<str>| Mismatch { ours: ours.clone(), theirs: theirs.clone() };
        if self.model != theirs.model {
            return Err(BlockExchangeError::OtherModel(mismatch(&self.model, &theirs.model)));
        }
        if self.kv_type != theirs.kv_type {
            return Err(BlockExchangeError::OtherKvType(mismatch(&self.kv_type, &theirs.kv_type)));
        }
        if self.name != theirs.name {
            return Err(BlockExchangeError::OtherLayout(mismatch(&self.name, &theirs.name)));
        }
        if self.n_bytes != theirs.n_bytes {
            return Err(BlockExchangeError::WrongSize { n_bytes: theirs.n_bytes, expected: self.n_bytes });
        }
        let n_bytes = |layout: &Self| layout.n_bytes.saturating_mul(layout.n_state_parts as usize);
        if self.n_state_parts != theirs.n_state_parts {
            return Err(BlockExchangeError::WrongSize { n_bytes: n_bytes(theirs), expected: n_bytes(self) });
        }
        Ok(())
    }
}

/// The bytes of blocks, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedBlocks {
    /// Layout of the bytes.
    pub layout: BlockLayout,
    /// Bytes of all blocks, [`BlockLayout::n_bytes`] for each.
    pub bytes: Vec<u8>,
}

impl ExportedBlocks {
    /// Checks that an executor with the layout `ours` can import them into `n_blocks` blocks.
    ///
    /// # Errors
    /// When the layouts differ, or the number of bytes does not match the number of blocks.
    pub fn check(&self, ours: &BlockLayout, n_blocks: usize) -> Result<(), BlockExchangeError> {
        ours.check(&self.layout)?;
        match n_blocks.checked_mul(ours.n_bytes) {
            Some(expected) if expected == self.bytes.len() => Ok(()),
            expected => Err(BlockExchangeError::WrongSize {
                n_bytes: self.bytes.len(),
                expected: expected.unwrap_or(usize::MAX),
            }),
        }
    }
}

/// Two names that should be equal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{theirs}, not {ours}")]
pub struct Mismatch {
    /// Name of this side's model or format.
    pub ours: Arc<str>,
    /// The name of the other side's model or format.
    pub theirs: Arc<str>,
}

/// Reason why blocks were not exported or imported. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockExchangeError {
    /// The executor neither exports nor imports blocks.
    #[error("the executor does not exchange blocks")]
    Unsupported,
    /// A step in flight may write to the blocks.
    #[error("a step is in flight")]
    StepInFlight,
    /// The block does not exist.
    #[error("block {} of {n_blocks}", .block.0)]
    NoSuchBlock {
        /// The block that does not exist.
        block: BlockId,
        /// Number of blocks of the executor.
        n_blocks: u32,
    },
    /// The blocks belong to another model.
    #[error("blocks of another model: {0}")]
    OtherModel(Mismatch),
    /// Keys and values have another type.
    #[error("keys and values of another type: {0}")]
    OtherKvType(Mismatch),
    /// The bytes are laid out in another way.
    #[error("blocks in another layout: {0}")]
    OtherLayout(Mismatch),
    /// The number of bytes does not match the number of blocks.
    #[error("{n_bytes} bytes of blocks, not {expected}")]
    WrongSize {
        /// Number of bytes received.
        n_bytes: usize,
        /// Number of bytes of these blocks.
        expected: usize,
    },
    /// The device failed to copy the block.
    #[error("the device failed: {0}")]
    Device(String),
}

/// Checks that blocks exist.
///
/// # Errors
/// The first block that does not exist.
pub fn check_blocks(blocks: &[BlockId], n_blocks: u32) -> Result<(), BlockExchangeError> {
    match blocks.iter().find(|block| block.0 >= n_blocks) {
        Some(&block) => Err(BlockExchangeError::NoSuchBlock { block, n_blocks }),
        None => Ok(()),
    }
}
