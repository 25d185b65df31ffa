//! Blocks of a runner's cache as bytes that another runner of the same model takes over. Does not know what
//! the bytes mean.

use throng_core::scheduling::batch::BlockId;
use throng_core::scheduling::block_exchange::{
    BlockExchangeError, BlockLayout, ExportedBlocks, check_blocks,
};

use super::ModelRunner;
use crate::backend::{Backend, BackendError};

impl<B: Backend> ModelRunner<B> {
    /// The layout of exported blocks; none where the device has none, or nothing names the model.
    pub(super) fn exchanged_layout(&self) -> Option<BlockLayout> {
        let held = self.backend.block_layout(&self.cache)?;
        Some(BlockLayout {
            model: self.fingerprint.clone()?,
            kv_type: self.kv_dtype.name().into(),
            name: held.name.into(),
            n_bytes: held.n_bytes,
        })
    }

    /// Copies the bytes of blocks.
    pub(super) fn export(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        let layout = self.idle_layout(blocks)?;
        let mut bytes = Vec::with_capacity(layout.n_bytes * blocks.len());
        for block in blocks {
            self.backend.export_block(&self.cache, block.0, &mut bytes).map_err(device_error)?;
        }
        Ok(ExportedBlocks { layout, bytes })
    }

    /// Overwrites blocks with exported bytes.
    pub(super) fn import(
        &mut self,
        exported: &ExportedBlocks,
        to: &[BlockId],
    ) -> Result<(), BlockExchangeError> {
        let layout = self.idle_layout(to)?;
        exported.check(&layout, to.len())?;
        // A model without keys and values has blocks without bytes.
        for (block, bytes) in to.iter().zip(exported.bytes.chunks_exact(layout.n_bytes.max(1))) {
            self.backend.import_block(&mut self.cache, block.0, bytes).map_err(device_error)?;
        }
        Ok(())
    }

    /// The layout, if the blocks exist and no step may touch them.
    fn idle_layout(&self, blocks: &[BlockId]) -> Result<BlockLayout, BlockExchangeError> {
        let layout = self.exchanged_layout().ok_or(BlockExchangeError::Unsupported)?;
        if !self.in_flight.is_empty() {
            return Err(BlockExchangeError::StepInFlight);
        }
        check_blocks(blocks, self.capacity.n_blocks)?;
        Ok(layout)
    }
}

fn device_error(error: BackendError) -> BlockExchangeError {
    BlockExchangeError::Device(error.to_string())
}
