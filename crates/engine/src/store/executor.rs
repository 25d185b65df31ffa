//! An executor beside a store and other engines: before each step it hands the bytes of blocks over, and
//! writes what came back into blocks. Does not know files and connections.

use throng_core::scheduling::batch::{
    BlockExport, BlockId, BlockLoad, MemorySlot, ScheduledBatch, StepOutput, StoredPlace, Tier,
};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use super::threads::StoreThreads;

/// An executor whose blocks are saved, brought back and given to other engines.
pub struct StoringExecutor {
    inner: Box<dyn Executor>,
    layout: BlockLayout,
    store: StoreThreads,
}

impl StoringExecutor {
    /// Adds a store to an executor whose blocks have this layout.
    pub fn new(inner: Box<dyn Executor>, layout: BlockLayout, store: StoreThreads) -> Self {
        store.forget_read();
        Self { inner, layout, store }
    }

    fn load(&mut self, load: BlockLoad) -> Result<(), ExecutorError> {
        let missing = || ExecutorError::Device("a block of the store was not read".to_owned());
        let bytes = self.store.take_read(load.slot).ok_or_else(missing)?;
        let (loaded, bytes) = match load.to {
            StoredPlace::Block(block) => {
                let exported = ExportedBlocks { layout: self.layout.clone(), bytes };
                (self.inner.import_blocks(&exported, &[block]), exported.bytes)
            }
            StoredPlace::StatePart { slot, part } => (self.inner.import_state(slot, part, &bytes), bytes),
        };
        self.store.reuse(bytes);
        loaded.map_err(|error| ExecutorError::Device(error.to_string()))
    }

    fn copy(&mut self, from: StoredPlace) -> Result<Vec<u8>, BlockExchangeError> {
        match from {
            StoredPlace::Block(block) => Ok(self.inner.export_blocks(&[block])?.bytes),
            StoredPlace::StatePart { slot, part } => self.inner.export_state(slot, part),
        }
    }

    fn export(&mut self, export: &BlockExport) {
        if !self.store.exports().is_awaited(export.export) {
            return;
        }
        let bytes = self.copy(export.from).ok();
        self.store.exports().deliver(export.export, bytes.map(|bytes| (export.content, bytes)));
    }
}

/// Whether a step has nothing but traffic with the store.
fn is_traffic_only(batch: &ScheduledBatch) -> bool {
    batch.is_empty()
        && batch.encodings().is_empty()
        && batch.moves().is_empty()
        && batch.state_copies().is_empty()
}

impl Executor for StoringExecutor {
    /// One step in flight at a time: blocks leave and enter an idle executor only.
    fn capacity(&self) -> ExecutorCapacity {
        let capacity = self.inner.capacity();
        ExecutorCapacity { max_steps_in_flight: capacity.max_steps_in_flight.min(1), ..capacity }
    }

    fn n_blocks_in(&self, tier: Tier) -> u32 {
        self.inner.n_blocks_in(tier)
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        for save in batch.saves() {
            match self.copy(save.from) {
                Ok(bytes) => self.store.write(save.slot, save.content, bytes),
                Err(_) => self.store.fail_write(save.slot),
            }
        }
        batch.loads().iter().try_for_each(|&load| self.load(load))?;
        batch.exports().iter().for_each(|export| self.export(export));
        if is_traffic_only(batch) { Ok(()) } else { self.inner.submit(batch) }
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if is_traffic_only(batch) {
            output.clear();
            return Ok(());
        }
        self.inner.collect(batch, output)
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        Some(self.layout.clone())
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        self.inner.export_blocks(blocks)
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        self.inner.import_blocks(exported, to)
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.inner.export_state(slot, part)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        self.inner.import_state(slot, part, bytes)
    }
}
