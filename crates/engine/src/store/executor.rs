//! An executor beside a store: before each step it hands the bytes of blocks to the store's threads, and
//! writes what they have read into blocks. Does not know files.

use throng_core::scheduling::batch::{BlockId, BlockLoad, ScheduledBatch, StepOutput, Tier};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use super::threads::StoreThreads;

/// An executor whose blocks are saved and brought back.
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
        let exported = ExportedBlocks { layout: self.layout.clone(), bytes };
        let loaded = self.inner.import_blocks(&exported, &[load.block]);
        self.store.reuse(exported.bytes);
        loaded.map_err(|error| ExecutorError::Device(error.to_string()))
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
            match self.inner.export_blocks(&[save.block]) {
                Ok(exported) => self.store.write(save.slot, save.content, exported.bytes),
                Err(_) => self.store.fail_write(save.slot),
            }
        }
        batch.loads().iter().try_for_each(|&load| self.load(load))?;
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
}
