//! The latest steps, to look at: what each was and how long it took. Bounded. Does not know tokens.

use std::collections::VecDeque;

use crate::time::{Nanos, Timestamp};

/// One step that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRecord {
    /// Steps before it.
    pub number: u64,
    /// Time at which it was planned, since the engine's start.
    pub started: Timestamp,
    /// Time from then, or from the end of the step before it if that was later, until its result was there.
    pub duration: Nanos,
    /// Time from when it was planned until the batch was built and handed to the executor.
    pub planning: Nanos,
    /// Time in the executor, beginning the step and waiting for its end; nothing where the step gave no
    /// result.
    pub executing: Nanos,
    /// Part of the time in the executor that went into sampling.
    pub choosing: Nanos,
    /// Requests that arrived since the step before was planned.
    pub n_arrivals: u32,
    /// Sequences that had a share in it.
    pub n_sequences: u32,
    /// Sequences for which it chose a token.
    pub n_sampled: u32,
    /// New tokens.
    pub n_tokens: u32,
    /// Positions its new tokens attended to, summed over tokens.
    pub n_attended: u64,
    /// Sequences that waited while it ran.
    pub n_waiting: u32,
    /// Whether it gave a result.
    pub succeeded: bool,
}

/// A ring of the latest steps.
#[derive(Debug, Default)]
pub struct StepLog {
    records: VecDeque<StepRecord>,
    max_records: usize,
}

impl StepLog {
    /// A log of at most `max_records` steps.
    pub fn new(max_records: usize) -> Self {
        Self { records: VecDeque::with_capacity(max_records), max_records }
    }

    /// Adds the newest step.
    pub fn push(&mut self, record: StepRecord) {
        if self.max_records == 0 {
            return;
        }
        if self.records.len() == self.max_records {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// The kept steps, oldest first.
    pub fn records(&self) -> Vec<StepRecord> {
        self.records.iter().copied().collect()
    }
}
