//! A store beside the executor: keeps the bytes that steps save, takes its time over everything, and now and
//! then fails. Beside it another engine, which keeps what it was given, and from which blocks come back.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use throng_core::request::{BlockHolder, PeerId, Request};
use throng_core::scheduling::batch::{ExportId, ScheduledBatch, StoreSlot, StoredPlace};
use throng_core::scheduling::block_exchange::{BlockExchangeError, ExportedBlocks};
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::scheduling::block_store::{StoreCapacity, StoreOrder};
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::scheduler::Scheduler;
use throng_core::time::Timestamp;
use throng_testkit::paper_executor::PaperExecutor;

use super::requests::one_in;
use super::saboteur::Bug;

pub struct Store {
    kept: BTreeMap<StoreSlot, (BlockHash, Vec<u8>)>,
    writing: Vec<StoreSlot>,
    reading: Vec<(StoreSlot, BlockHash)>,
    read: BTreeMap<StoreSlot, Vec<u8>>,
    /// Blocks of the other engine.
    peer: BTreeMap<BlockHash, Vec<u8>>,
    pulling: Vec<(StoreSlot, BlockHash)>,
    /// Blocks that the other engine has asked for.
    exporting: BTreeMap<ExportId, BlockHash>,
    n_exports: u64,
    capacity: StoreCapacity,
    one_in_fails: u32,
    one_in_acts: u32,
    pub n_saved: usize,
    pub n_loaded: usize,
    pub n_failed: usize,
    pub n_pulled: usize,
    pub n_failed_pulls: usize,
    pub n_served: usize,
    pub n_state_parts: usize,
    /// Number of reads and writes that were reported.
    pub n_reports: usize,
}

impl Store {
    pub fn new(rng: &mut Rng, has_states: bool) -> Self {
        let capacity = StoreCapacity {
            n_slots: if one_in(rng, 4) { 0 } else { rng.u32(1..60) },
            max_saves_per_step: rng.u32(1..4),
            max_writes: rng.u32(1..16),
            max_reads: rng.u32(1..16),
            max_pulls: if one_in(rng, 4) { 0 } else { rng.u32(1..16) },
            max_exports_per_step: rng.u32(1..4),
            max_exports: rng.u32(1..40),
            block_bytes: 128,
            n_state_parts: if has_states { 2 } else { 0 },
        };
        Self {
            kept: BTreeMap::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            read: BTreeMap::new(),
            peer: BTreeMap::new(),
            pulling: Vec::new(),
            exporting: BTreeMap::new(),
            n_exports: 0,
            capacity,
            one_in_fails: if rng.bool() { u32::MAX } else { rng.u32(3..40) },
            one_in_acts: rng.u32(1..4),
            n_saved: 0,
            n_loaded: 0,
            n_failed: 0,
            n_pulled: 0,
            n_failed_pulls: 0,
            n_served: 0,
            n_state_parts: 0,
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
        if bug == Some(Bug::ExportBeforeLoad) {
            self.export(batch, executor)?;
        }
        for load in batch.loads() {
            let bytes = self.read.remove(&load.slot).ok_or("a slot is loaded that was not read")?;
            let is_pulled = load.slot.0 >= self.capacity.n_slots;
            self.n_loaded += usize::from(!is_pulled);
            self.n_pulled += usize::from(is_pulled);
            if bug != Some(Bug::LostLoad) {
                import(executor, load.to, bytes).map_err(|error| error.to_string())?;
                self.n_state_parts += usize::from(matches!(load.to, StoredPlace::StatePart { .. }));
            }
        }
        if bug == Some(Bug::ExportBeforeLoad) { Ok(()) } else { self.export(batch, executor) }
    }

    /// Gives the other engine what a step says.
    fn export(&mut self, batch: &ScheduledBatch, executor: &mut PaperExecutor) -> Result<(), String> {
        if batch.exports().len() > self.capacity.max_exports_per_step as usize {
            return Err(format!("{} exports in one step", batch.exports().len()));
        }
        for export in batch.exports() {
            let asked = self.exporting.remove(&export.export).ok_or("a block that nobody asked for")?;
            if asked != export.content.hash {
                return Err("another block than the one that was asked for".into());
            }
            let bytes = copy(executor, export.from).map_err(|error| error.to_string())?;
            self.n_served += 1;
            self.peer.insert(asked, bytes);
        }
        Ok(())
    }

    /// Tells a request what the other engine has of its prompt: sometimes too much, sometimes too little.
    pub fn holder(&self, rng: &mut Rng, request: &Request) -> Option<BlockHolder> {
        let n_held = names(request).iter().take_while(|name| self.peer.contains_key(*name)).count();
        let n_blocks = if one_in(rng, 4) { rng.u32(..30) } else { n_held as u32 };
        Some(BlockHolder { peer: PeerId(rng.u32(..3)), n_blocks })
    }

    /// Lets the other engine ask for the blocks of a prompt.
    pub fn ask_for(&mut self, request: &Request, scheduler: &mut Scheduler, now: Timestamp) {
        let names = names(request);
        let parts = |name: BlockHash| (0..self.capacity.n_state_parts).map(move |part| name.state_part(part));
        let states = names.iter().rev().flat_map(|name| parts(*name));
        let all: Vec<_> = names.iter().copied().chain(states).collect();
        let wanted: Vec<_> = all
            .into_iter()
            .map(|name| {
                self.n_exports += 1;
                (ExportId(self.n_exports), name)
            })
            .collect();
        self.exporting.extend(wanted.iter().copied());
        scheduler.request_exports(&wanted, now);
    }

    fn save(&mut self, batch: &ScheduledBatch, executor: &mut PaperExecutor) -> Result<(), String> {
        if batch.saves().len() > self.capacity.max_saves_per_step as usize {
            return Err(format!("{} saves in one step", batch.saves().len()));
        }
        for save in batch.saves() {
            let is_read = self.reading.iter().any(|(slot, _)| *slot == save.slot);
            if save.slot.0 >= self.capacity.n_slots {
                return Err(format!("{:?} is not on the disk", save.slot));
            }
            if is_read || self.writing.contains(&save.slot) || save.slot.0 >= self.capacity.n_slots {
                return Err(format!("{:?} is overwritten while it is used", save.slot));
            }
            let bytes = copy(executor, save.from).map_err(|error| error.to_string())?;
            self.kept.insert(save.slot, (save.content.hash, bytes));
            self.writing.push(save.slot);
        }
        let names: BTreeSet<_> = self.kept.values().map(|(hash, _)| *hash).collect();
        // Blocks that the step loads make room for others already.
        let n_read = self.read.len() - batch.loads().len();
        let n_used = self.writing.len() + self.reading.len() + self.pulling.len() + n_read;
        let StoreCapacity { max_writes, max_reads, max_pulls, .. } = self.capacity;
        let most = (max_writes + max_reads + max_pulls) as usize;
        if names.len() > self.capacity.n_slots as usize || n_used > most {
            return Err(format!("{n_used} blocks in host memory, {} names", names.len()));
        }
        Ok(())
    }

    /// Takes the scheduler's orders, and now and then reports a read or a write.
    pub fn act(&mut self, rng: &mut Rng, scheduler: &mut Scheduler) {
        for order in scheduler.take_store_orders() {
            if let StoreOrder::Drop(slot) = order {
                assert!(self.read.contains_key(&slot), "nothing to drop");
            }
            self.take_order(order);
        }
        while self.has_work() && one_in(rng, self.one_in_acts) {
            self.report(rng, scheduler);
        }
    }

    fn take_order(&mut self, order: StoreOrder) {
        match order {
            StoreOrder::Read(slot, hash) => self.reading.push((slot, hash)),
            StoreOrder::Drop(slot) => drop(self.read.remove(&slot)),
            StoreOrder::Pull(slot, hash, _) => self.pulling.push((slot, hash)),
            StoreOrder::ReadForPeer(export, slot, hash) => {
                let asked = self.exporting.remove(&export);
                assert_eq!(asked, Some(hash), "another block than the one that was asked for");
                // The block may have given way to another one.
                if let Some((_, bytes)) = self.kept.get(&slot).filter(|(held, _)| *held == hash) {
                    self.peer.insert(hash, bytes.clone());
                }
            }
            StoreOrder::Missing(export) => {
                assert!(self.exporting.remove(&export).is_some(), "an answer that nobody waits for");
            }
        }
    }

    pub fn has_work(&self) -> bool {
        self.writing.len() + self.reading.len() + self.pulling.len() > 0
    }

    /// Reports one read or write.
    pub fn report(&mut self, rng: &mut Rng, scheduler: &mut Scheduler) {
        let succeeded = !one_in(rng, self.one_in_fails);
        self.n_failed += usize::from(!succeeded);
        self.n_reports += 1;
        if !self.pulling.is_empty() && (self.writing.len() + self.reading.len() == 0 || rng.bool()) {
            let (slot, hash) = self.pulling.swap_remove(rng.usize(..self.pulling.len()));
            let came = self.peer.get(&hash).filter(|_| succeeded).cloned();
            self.n_failed_pulls += usize::from(came.is_none());
            let succeeded = came.is_some();
            came.into_iter().for_each(|bytes| drop(self.read.insert(slot, bytes)));
            return scheduler.note_read(slot, succeeded);
        }
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
            self.take_order(order);
        }
        self.read.clear();
    }
}

fn copy(executor: &mut PaperExecutor, from: StoredPlace) -> Result<Vec<u8>, BlockExchangeError> {
    match from {
        StoredPlace::Block(block) => Ok(executor.export_blocks(&[block])?.bytes),
        StoredPlace::StatePart { slot, part } => executor.export_state(slot, part),
    }
}

fn import(executor: &mut PaperExecutor, to: StoredPlace, bytes: Vec<u8>) -> Result<(), BlockExchangeError> {
    match to {
        StoredPlace::Block(block) => {
            let layout = executor.block_layout().ok_or(BlockExchangeError::Unsupported)?;
            executor.import_blocks(&ExportedBlocks { layout, bytes }, &[block])
        }
        StoredPlace::StatePart { slot, part } => executor.import_state(slot, part, &bytes),
    }
}

/// Names of the full blocks of a prompt.
fn names(request: &Request) -> Vec<BlockHash> {
    let adapter = request.adapter.map(|adapter| adapter.digest);
    let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter);
    BlockHash::names_after(root, 0, &request.prompt, request.media.as_deref()).collect()
}
