//! The interface of executors, which run batches. Does not know requests, scheduling and time.

use serde::{Deserialize, Serialize};

use crate::scheduling::batch::{BlockId, BlockMove, MemorySlot, ScheduledBatch, StepOutput, Tier};
use crate::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};

/// Maximum number of steps in flight on any executor, whatever its capacity. Two keep one device busy; a
/// pipeline of devices needs one for each of its stages.
pub const MAX_STEPS_IN_FLIGHT: usize = 8;

/// Runs batches. It keeps only the bytes of the KV cache and of the recurrent states between steps: the batch
/// carries tokens, drafts, blocks, slots of state, sampling parameters, constraints and history, so abort,
/// preemption and restart need no message to it.
///
/// Steps run one after the other, in the order in which they were submitted: a step's writes to a block come
/// after all reads and writes of earlier steps. So a block or a slot of state may be given to another
/// sequence while a step in flight still uses it.
pub trait Executor: Send {
    /// Capacity of the executor.
    fn capacity(&self) -> ExecutorCapacity;

    /// Number of blocks of the executor in a tier. Batches may move blocks between tiers that have blocks;
    /// any other move fails with [`ExecutorError::UnsupportedMove`].
    fn n_blocks_in(&self, tier: Tier) -> u32 {
        if tier == Tier::Device { self.capacity().n_blocks } else { 0 }
    }

    /// Begins a step without waiting for it or for the steps before. At most
    /// [`ExecutorCapacity::max_steps_in_flight`] steps are submitted and not collected. A token of `batch`
    /// may be [carried](crate::scheduling::batch::ScheduledSequence::carried) from the step submitted
    /// before. The default is for executors that run the step in [`Self::collect`].
    ///
    /// # Errors
    /// When the step cannot be run. The steps before it are still to be collected.
    fn submit(&mut self, _batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        Ok(())
    }

    /// Waits until the oldest step that was submitted has ended, which is that of `batch`, and answers each
    /// of its sequences, in order, into `output` (which it clears first).
    ///
    /// # Errors
    /// When the whole step failed; no sequence then has a result. The failure of one sequence is reported
    /// with [`StepOutput::fail_sequence`] instead.
    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError>;

    /// Layout of the blocks in [`Self::export_blocks`]; `None` if the executor does not exchange blocks.
    fn block_layout(&self) -> Option<BlockLayout> {
        None
    }

    /// Copies the bytes of blocks, in this order, when no step is in flight.
    ///
    /// # Errors
    /// When it exchanges no blocks, a step is in flight, or a block does not exist.
    fn export_blocks(&mut self, _blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        Err(BlockExchangeError::Unsupported)
    }

    /// Writes exported bytes into the blocks `to`, in order, when no step is in flight.
    ///
    /// # Errors
    /// Errors of [`Self::export_blocks`], and when the bytes are of another model, type of keys and values,
    /// layout or size.
    fn import_blocks(
        &mut self,
        _exported: &ExportedBlocks,
        _to: &[BlockId],
    ) -> Result<(), BlockExchangeError> {
        Err(BlockExchangeError::Unsupported)
    }

    /// Copies a part of a recurrent state, as many bytes as a block has, when no step is in flight.
    ///
    /// # Errors
    /// Errors of [`Self::export_blocks`].
    fn export_state(&mut self, _slot: MemorySlot, _part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        Err(BlockExchangeError::Unsupported)
    }

    /// Overwrites a part of a recurrent state with exported bytes, when no step is in flight.
    ///
    /// # Errors
    /// Errors of [`Self::export_blocks`], and when the bytes are not those of a part.
    fn import_state(
        &mut self,
        _slot: MemorySlot,
        _part: u32,
        _bytes: &[u8],
    ) -> Result<(), BlockExchangeError> {
        Err(BlockExchangeError::Unsupported)
    }

    /// Runs a step from its beginning to its end, when no other is in flight.
    ///
    /// # Errors
    /// Errors of [`Self::collect`].
    fn execute(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.submit(batch)?;
        self.collect(batch, output)
    }
}

/// Capacity of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorCapacity {
    /// Number of KV blocks of [`crate::scheduling::batch::BLOCK_TOKENS`] tokens.
    pub n_blocks: u32,
    /// Maximum number of new tokens in one batch.
    pub max_batch_tokens: u32,
    /// Maximum number of sequences in one batch.
    pub max_batch_sequences: u32,
    /// Maximum number of tokens (prompt and output) of one sequence.
    pub max_sequence_tokens: u32,
    /// Size of the vocabulary; token ids are below it.
    pub vocabulary_size: u32,
    /// Number of slots of recurrent state, of which each running sequence needs one; 0 if the model has no
    /// recurrent layers.
    pub n_state_slots: u32,
    /// Maximum number of steps that are submitted and not collected, at most [`MAX_STEPS_IN_FLIGHT`]. With
    /// 2, the next step is planned while one runs, which helps if the device would otherwise wait for the
    /// host.
    pub max_steps_in_flight: u32,
    /// Whether all tokens of a sequence are computed in one step, none of them from the cache, because they
    /// attend to each other in both directions. Requests then have at most one output token, which represents
    /// a vector.
    pub takes_whole_prompts: bool,
    /// Whether prompts may have spans that are not text, and positions in several sections.
    pub takes_media: bool,
    /// Whether all tokens of a span are computed in one step, because they attend to each other in both
    /// directions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_media_whole: bool,
    /// Stages that a step passes one after the other, each busy with another step. With more than 1 the
    /// sequences that run are divided over as many steps, and no token is carried from one to the next.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub n_stages: u32,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Reason why a whole step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// A device or its driver failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// The batch moves a block from or to a tier that the executor does not have.
    #[error("blocks cannot move from {} to {}", .0.from.tier, .0.to.tier)]
    UnsupportedMove(BlockMove),
    /// A process that runs a part of the model takes part no more.
    #[error("a process of the model was lost: {0}")]
    PeerLost(String),
    /// The executor could not allocate memory for the step.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
}
