//! The extension point for what runs a batch. Does not know requests, scheduling and time.

use serde::{Deserialize, Serialize};

use crate::scheduling::batch::{BlockId, BlockMove, ScheduledBatch, StepOutput, Tier};
use crate::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};

/// Upper bound of the steps in flight on any executor, whatever its capacity says. Two keep one device busy;
/// a pipeline of devices keeps one for each of its stages.
pub const MAX_STEPS_IN_FLIGHT: usize = 8;

/// Runs batches. It remembers nothing between steps but the bytes of the KV cache and of the recurrent
/// states: the batch carries tokens, drafts, blocks, slots of state, sampling parameters, constraints and
/// history, so abort, preemption and restart send it no message.
///
/// Steps run one after the other, in the order in which they were submitted: what a step writes to a block
/// comes after all that the steps before it read and write there. So a block or a slot of state may be given
/// to another sequence while a step in flight still uses it.
pub trait Executor: Send {
    /// Its capacity.
    fn capacity(&self) -> ExecutorCapacity;

    /// Blocks that it has room for in a tier, whose indices are below this. Batches may move blocks between
    /// the tiers where there are any; [`ExecutorError::UnsupportedMove`] answers any other move.
    fn n_blocks_in(&self, tier: Tier) -> u32 {
        if tier == Tier::Device { self.capacity().n_blocks } else { 0 }
    }

    /// Begins a step and does not wait for it, nor for the steps before. No more steps are submitted and not
    /// collected than [`ExecutorCapacity::max_steps_in_flight`]. A token of `batch` may be
    /// [carried](crate::scheduling::batch::ScheduledSequence::carried) from the step submitted before. The
    /// default is for executors that run the step in [`Self::collect`].
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
    /// When the whole step failed; no sequence then has a result. One sequence's fault is told with
    /// [`StepOutput::fail_sequence`] instead.
    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError>;

    /// The layout of its blocks in [`Self::export_blocks`]; `None`: it exchanges none.
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

    /// Makes exported bytes those of its blocks `to`, one after the other, when no step is in flight.
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
    /// KV blocks of [`crate::scheduling::batch::BLOCK_TOKENS`] tokens.
    pub n_blocks: u32,
    /// Most new tokens in one batch.
    pub max_batch_tokens: u32,
    /// Most sequences in one batch.
    pub max_batch_sequences: u32,
    /// Most tokens (prompt and output) of one sequence.
    pub max_sequence_tokens: u32,
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Slots of recurrent state, of which each running sequence needs one; 0 where the model has no recurrent
    /// layers.
    pub n_state_slots: u32,
    /// Most steps that are submitted and not collected, at most [`MAX_STEPS_IN_FLIGHT`]. With 2, the next
    /// step is planned while one runs, which pays where the device would else wait for the host.
    pub max_steps_in_flight: u32,
    /// Whether all tokens of a sequence are computed in one step, none of them from the cache, because they
    /// see each other in both directions. No request of it asks for more than one output token, which stands
    /// for a vector.
    pub takes_whole_prompts: bool,
    /// Whether prompts may have spans that are not text, and positions in several sections.
    pub takes_media: bool,
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
    /// The executor could not allocate what the step needs.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
}
