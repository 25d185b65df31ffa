//! Blocks of a runner's cache, and its recurrent states, as bytes that another runner of the same model can
//! import. Does not know the meaning of the bytes.

use std::ops::Range;

use throng_core::scheduling::batch::{BlockId, MemorySlot};
use throng_core::scheduling::block_exchange::{
    BlockExchangeError, BlockLayout, ExportedBlocks, check_blocks,
};

use super::ModelRunner;
use crate::backend::{Backend, BackendError};

/// Maximum size of a part of a recurrent state in a model without keys and values, whose blocks have this
/// size too: they hold nothing but their names.
const STATE_PART_BYTES: usize = 64 << 10;

impl<B: Backend> ModelRunner<B> {
    /// The layout of exported blocks; `None` for a device without one, or a model without a name.
    pub(super) fn exchanged_layout(&self) -> Option<BlockLayout> {
        let held = self.backend.block_layout(&self.cache)?;
        let layout = BlockLayout {
            model: self.fingerprint.clone()?,
            kv_type: self.kv_dtype.name().into(),
            name: held.name.into(),
            n_bytes: held.n_bytes,
            n_state_parts: 0,
        };
        if self.capacity.n_state_slots == 0 {
            return Some(layout);
        }
        let state = self.decoder.state_layout(&self.backend)?;
        let n_bytes = if held.n_bytes > 0 { held.n_bytes } else { state.n_bytes.min(STATE_PART_BYTES) };
        let n_state_parts = u32::try_from(state.n_bytes.div_ceil(n_bytes.max(1))).ok()?;
        let name = format!("{} with {}", held.name, state.name).into();
        Some(BlockLayout { name, n_bytes, n_state_parts, ..layout })
    }

    /// Copies the bytes of blocks.
    pub(super) fn export(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        let layout = self.idle_layout(blocks)?;
        let mut bytes = Vec::with_capacity(layout.n_bytes * blocks.len());
        for block in blocks {
            let end = bytes.len() + layout.n_bytes;
            self.backend.export_block(&self.cache, block.0, &mut bytes).map_err(device_error)?;
            bytes.resize(end, 0);
        }
        Ok(ExportedBlocks { layout, bytes })
    }

    /// Copies a part of a recurrent state.
    pub(super) fn export_part(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        let (layout, range) = self.part_range(slot, part)?;
        let mut bytes = Vec::with_capacity(layout.n_bytes);
        self.decoder.export_state(&mut self.backend, slot.0, range, &mut bytes).map_err(device_error)?;
        bytes.resize(layout.n_bytes, 0);
        Ok(bytes)
    }

    /// Overwrites a part of a recurrent state.
    pub(super) fn import_part(
        &mut self,
        slot: MemorySlot,
        part: u32,
        bytes: &[u8],
    ) -> Result<(), BlockExchangeError> {
        let (layout, range) = self.part_range(slot, part)?;
        if bytes.len() != layout.n_bytes {
            return Err(BlockExchangeError::WrongSize { n_bytes: bytes.len(), expected: layout.n_bytes });
        }
        let bytes = &bytes[..range.len()];
        self.decoder.import_state(&mut self.backend, slot.0, range.start, bytes).map_err(device_error)
    }

    /// The range of a part within the bytes of a state that exists.
    fn part_range(
        &self,
        slot: MemorySlot,
        part: u32,
    ) -> Result<(BlockLayout, Range<usize>), BlockExchangeError> {
        let layout = self.idle_layout(&[])?;
        if slot.0 >= self.capacity.n_state_slots || part >= layout.n_state_parts {
            return Err(BlockExchangeError::Unsupported);
        }
        let state = self.decoder.state_layout(&self.backend).ok_or(BlockExchangeError::Unsupported)?;
        let start = (part as usize * layout.n_bytes).min(state.n_bytes);
        Ok((layout.clone(), start..(start + layout.n_bytes).min(state.n_bytes)))
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
