//! Records of the latest steps, bounded in number. Does not know tokens.

use std::collections::VecDeque;

use crate::time::{Nanos, Timestamp};

/// Record of a step that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of steps before it.
    pub number: u64,
    /// Time at which it was planned, since the engine's start.
    pub started: Timestamp,
    /// Time from `started`, or from the end of the step before if that was later, to its result.
    pub duration: Nanos,
    /// Time from `started` until the batch was built and handed to the executor.
    pub planning: Nanos,
    /// Time in the executor, for beginning the step and waiting for its end; 0 if the step gave no result.
    pub executing: Nanos,
    /// Part of the executor's time that was spent on sampling.
    pub choosing: Nanos,
    /// Number of requests that arrived since the step before was planned.
    pub n_arrivals: u32,
    /// Number of sequences with a share in it.
    pub n_sequences: u32,
    /// Number of sequences for which it sampled a token.
    pub n_sampled: u32,
    /// Number of new tokens.
    pub n_tokens: u32,
    /// Number of positions that the new tokens attended to, summed over tokens.
    pub n_attended: u64,
    /// Number of sequences that waited while it ran.
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
