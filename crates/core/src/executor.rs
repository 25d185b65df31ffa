//! The extension point for what runs a batch. Does not know requests, scheduling and time.

use crate::batch::{ScheduledBatch, StepOutput};

/// Runs batches. It remembers nothing between steps but the bytes of the KV cache and of the recurrent states: the batch carries tokens,
/// drafts, blocks, slots of state, sampling parameters, constraints and history, so abort, preemption and restart send it no message.
pub trait Executor: Send {
    /// What it can hold.
    fn capacity(&self) -> ExecutorCapacity;

    /// Runs one step and answers each sequence of `batch`, in order, into `output` (which it clears first).
    ///
    /// # Errors
    /// When the whole step failed; no sequence then has a result. One sequence's fault is told with
    /// [`StepOutput::fail_sequence`] instead.
    fn execute(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError>;
}

/// What an executor can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutorCapacity {
    /// KV blocks of [`crate::batch::BLOCK_TOKENS`] tokens.
    pub n_blocks: u32,
    /// Most new tokens in one batch.
    pub max_batch_tokens: u32,
    /// Most sequences in one batch.
    pub max_batch_sequences: u32,
    /// Most tokens (prompt and output) of one sequence.
    pub max_sequence_tokens: u32,
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Slots of recurrent state, of which each running sequence needs one; 0 where the model has no recurrent layers.
    pub n_state_slots: u32,
}

/// Why a whole step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// A device or its driver failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// The executor could not allocate what the step needs.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
}
