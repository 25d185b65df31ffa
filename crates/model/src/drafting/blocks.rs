//! Blocks of a model with a draft model as bytes: the model's, then the tokens, by which the draft model
//! computes its own keys and values where drafts are wanted. Does not know the model's bytes.

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{BLOCK_TOKENS, BlockId, MemorySlot};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};

use super::DraftingExecutor;

/// Bytes of the tokens of a block.
const TOKEN_BYTES: usize = BLOCK_TOKENS * size_of::<TokenId>();

impl DraftingExecutor {
    /// The layout of blocks; `None` where the model has none, or a head makes the drafts: it reads outputs of
    /// the model at earlier positions, which are not in the blocks.
    pub(super) fn exchanged_layout(&self) -> Option<BlockLayout> {
        let layout = self.model.block_layout().filter(|_| self.keeps_ahead)?;
        let name = format!("{} with tokens", layout.name).into();
        Some(BlockLayout { name, n_bytes: layout.n_bytes + TOKEN_BYTES, ..layout })
    }

    /// Copies the bytes of blocks.
    pub(super) fn export(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        let layout = self.exchanged_layout().ok_or(BlockExchangeError::Unsupported)?;
        let of_model = self.model.export_blocks(blocks)?;
        let mut bytes = Vec::with_capacity(layout.n_bytes * blocks.len());
        let n_model = of_model.layout.n_bytes;
        for (i, &block) in blocks.iter().enumerate() {
            bytes.extend_from_slice(&of_model.bytes[i * n_model..][..n_model]);
            self.slots
                .tokens_of(block)
                .iter()
                .for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        }
        Ok(ExportedBlocks { layout, bytes })
    }

    /// Overwrites blocks with exported bytes.
    pub(super) fn import(
        &mut self,
        exported: &ExportedBlocks,
        to: &[BlockId],
    ) -> Result<(), BlockExchangeError> {
        let layout = self.exchanged_layout().ok_or(BlockExchangeError::Unsupported)?;
        exported.check(&layout, to.len())?;
        let of_model = self.model.block_layout().ok_or(BlockExchangeError::Unsupported)?;
        let mut bytes = Vec::with_capacity(of_model.n_bytes * to.len());
        let blocks = exported.bytes.chunks_exact(layout.n_bytes);
        blocks.clone().for_each(|block| bytes.extend_from_slice(&block[..of_model.n_bytes]));
        self.model.import_blocks(&ExportedBlocks { layout: of_model, bytes }, to)?;
        for (&block, bytes) in to.iter().zip(blocks) {
            let tokens = bytes[layout.n_bytes - TOKEN_BYTES..].as_chunks().0;
            self.slots.replace(block, tokens.iter().map(|token| TokenId::from_le_bytes(*token)));
        }
        Ok(())
    }

    /// Copies a part of a recurrent state.
    pub(super) fn export_part(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.exchanged_layout().ok_or(BlockExchangeError::Unsupported)?;
        let mut bytes = self.model.export_state(slot, part)?;
        bytes.resize(bytes.len() + TOKEN_BYTES, 0);
        Ok(bytes)
    }

    /// Overwrites a part of a recurrent state.
    pub(super) fn import_part(
        &mut self,
        slot: MemorySlot,
        part: u32,
        bytes: &[u8],
    ) -> Result<(), BlockExchangeError> {
        let layout = self.exchanged_layout().ok_or(BlockExchangeError::Unsupported)?;
        let wrong_size = BlockExchangeError::WrongSize { n_bytes: bytes.len(), expected: layout.n_bytes };
        let of_model = bytes.len().checked_sub(TOKEN_BYTES).ok_or(wrong_size)?;
        self.model.import_state(slot, part, &bytes[..of_model])
    }
}
