//! A store beside the executor: keeps the bytes that steps save, takes its time over everything, and now and
//! then fails.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use throng_core::scheduling::batch::{ScheduledBatch, StoreSlot};
use throng_core::scheduling::block_exchange::ExportedBlocks;
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::scheduling::block_store::{StoreCapacity, StoreOrder};
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::scheduler::Scheduler;
use throng_testkit::paper_executor::PaperExecutor;

use super::requests::one_in;
use super::saboteur::Bug;

pub struct Store {
    kept: BTreeMap<StoreSlot, (BlockHash, ExportedBlocks)>,
    writing: Vec<StoreSlot>,
    reading: Vec<(StoreSlot, BlockHash)>,
    read: BTreeMap<StoreSlot, ExportedBlocks>,
    capacity: StoreCapacity,
    one_in_fails: u32,
    one_in_acts: u32,
    pub n_saved: usize,
    pub n_loaded: usize,
    pub n_failed: usize,
    /// Number of reads and writes that were reported.
    pub n_reports: usize,
}

impl Store {
    pub fn new(rng: &mut Rng) -> Self {
        let capacity = StoreCapacity {
            n_slots: rng.u32(1..60),
            max_saves_per_step: rng.u32(1..4),
            max_writes: rng.u32(1..16),
            max_reads: rng.u32(1..16),
        };
        Self {
            kept: BTreeMap::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            read: BTreeMap::new(),
            capacity,
            one_in_fails: if rng.bool() { u32::MAX } else { rng.u32(3..40) },
            one_in_acts: rng.u32(1..4),
            n_saved: 0,
            n_loaded: 0,
            n_failed: 0,
            n_reports: 0,
        }
    }

    pub fn attach(&self, scheduler: &mut Scheduler) {
        scheduler.attach_store(self.capacity, []);
    }

    /// Saves and loads what a step says, before it runs.
    pub fn exchange(
        &mut self,
        batch: &ScheduledBatch,
        executor: &mut PaperExecutor,
        bug: Option<Bug>,
    ) -> Result<(), String> {
        self.save(batch, executor)?;
        for load in batch.loads() {
            let bytes = self.read.remove(&load.slot).ok_or("a slot is loaded that was not read")?;
            self.n_loaded += 1;
            if bug != Some(Bug::LostLoad) {
                executor.import_blocks(&bytes, &[load.block]).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn save(&mut self, batch: &ScheduledBatch, executor: &mut PaperExecutor) -> Result<(), String> {
        if batch.saves().len() > self.capacity.max_saves_per_step as usize {
            return Err(format!("{} saves in one step", batch.saves().len()));
        }
        for save in batch.saves() {
            let is_read = self.reading.iter().any(|(slot, _)| *slot == save.slot);
            if is_read || self.writing.contains(&save.slot) || save.slot.0 >= self.capacity.n_slots {
                return Err(format!("{:?} is overwritten while it is used", save.slot));
            }
            let bytes = executor.export_blocks(&[save.block]).map_err(|error| error.to_string())?;
            self.kept.insert(save.slot, (save.content.hash, bytes));
            self.writing.push(save.slot);
        }
        let names: BTreeSet<_> = self.kept.values().map(|(hash, _)| *hash).collect();
        let n_used = self.writing.len() + self.reading.len() + self.read.len();
        let most = (self.capacity.max_writes + self.capacity.max_reads) as usize;
        if names.len() > self.capacity.n_slots as usize || n_used > most {
            return Err(format!("{n_used} blocks in host memory, {} names", names.len()));
        }
        Ok(())
    }

    /// Takes the scheduler's orders, and now and then reports a read or a write.
    pub fn act(&mut self, rng: &mut Rng, scheduler: &mut Scheduler) {
        for order in scheduler.take_store_orders() {
            match order {
                StoreOrder::Read(slot, hash) => self.reading.push((slot, hash)),
                StoreOrder::Drop(slot) => assert!(self.read.remove(&slot).is_some(), "nothing to drop"),
            }
        }
        while self.has_work() && one_in(rng, self.one_in_acts) {
            self.report(rng, scheduler);
        }
    }

    pub fn has_work(&self) -> bool {
        self.writing.len() + self.reading.len() > 0
    }

    /// Reports one read or write.
    pub fn report(&mut self, rng: &mut Rng, scheduler: &mut Scheduler) {
        let succeeded = !one_in(rng, self.one_in_fails);
        self.n_failed += usize::from(!succeeded);
        self.n_reports += 1;
        let i = rng.usize(..self.writing.len() + self.reading.len());
        if i < self.writing.len() {
            let slot = self.writing.swap_remove(i);
            if succeeded {
                self.n_saved += 1;
            } else {
                self.kept.remove(&slot);
            }
            return scheduler.note_written(slot, succeeded);
        }
        let (slot, hash) = self.reading.swap_remove(i - self.writing.len());
        let (held, bytes) = &self.kept[&slot];
        assert_eq!(*held, hash, "{slot:?} has another content");
        if succeeded {
            self.read.insert(slot, bytes.clone());
        }
        scheduler.note_read(slot, succeeded);
    }

    /// The executor is lost, with all that it was to take.
    pub fn forget(&mut self, scheduler: &mut Scheduler) {
        for order in scheduler.take_store_orders() {
            match order {
                StoreOrder::Read(slot, hash) => self.reading.push((slot, hash)),
                StoreOrder::Drop(slot) => drop(self.read.remove(&slot)),
            }
        }
        self.read.clear();
    }
}
