//! Bugs, planted between the scheduler and what it decides: each does to a batch, an output or the pool what a
//! mistake in core would have done.

use fastrand::Rng;
use throng_core::batch::{BlockId, NewRow, ScheduledBatch, StepOutput};
use throng_core::block_hash::BlockHash;
use throng_core::request::{Request, SequenceId, TenantId};
use throng_core::scheduler::Scheduler;

use crate::requests::one_in;

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A row reads another block than the last one it was given.
    WrongBlock,
    /// A row's first two blocks are exchanged.
    StaleTable,
    /// A row stands one position too early.
    OffByOneStart,
    /// The last token of a chunk is not computed.
    DroppedToken,
    /// A chunk is counted as computed although it did not run.
    SkippedChunk,
    /// Two rows get each other's answers.
    SwappedAnswers,
    /// All continuations draw the same random numbers.
    IndexIgnored,
    /// The history a penalty reads lacks the newest token.
    StaleHistory,
    /// A holder of a shared block is not counted.
    LostReference,
    /// A block is given back while a step uses it.
    FreedInFlight,
    /// A block is never given back.
    LeakedReference,
    /// Prefixes are named without their tenant.
    HashWithoutTenant,
    /// A block is found under the name of tokens it does not hold.
    UnverifiedHit,
    /// A request is not taken out of the steps although its reader is behind.
    LostPause,
    /// A request is not put back although its reader has caught up.
    LostResume,
    /// A paused request keeps a block.
    BlockKeptByPaused,
}

impl Bug {
    pub const ALL: [Self; 16] = [
        Self::WrongBlock,
        Self::StaleTable,
        Self::OffByOneStart,
        Self::DroppedToken,
        Self::SkippedChunk,
        Self::SwappedAnswers,
        Self::IndexIgnored,
        Self::StaleHistory,
        Self::LostReference,
        Self::FreedInFlight,
        Self::LeakedReference,
        Self::HashWithoutTenant,
        Self::UnverifiedHit,
        Self::LostPause,
        Self::LostResume,
        Self::BlockKeptByPaused,
    ];

    /// The request as core would have taken it.
    pub fn spoil_request(self, request: Request) -> Request {
        match self {
            Self::HashWithoutTenant => Request { tenant: TenantId::anonymous(), ..request },
            _ => request,
        }
    }

    /// The pool before a request arrives.
    pub fn spoil_pool_for(self, request: &Request, scheduler: &mut Scheduler) {
        let Some(tokens) = request.prompt.first_chunk() else { return };
        if self != Self::UnverifiedHit {
            return;
        }
        let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref());
        let (name, pool) = (root.child(tokens), scheduler.pool_mut());
        if pool.find(name, root, tokens).is_some() || pool.n_free() == 0 {
            return;
        }
        if let Some(block) = pool.allocate() {
            pool.publish(block, name, root, tokens);
            pool.release(block);
        }
    }

    /// The pool before a request is paused that has a row with this block.
    pub fn spoil_pause(self, block: Option<BlockId>, scheduler: &mut Scheduler) {
        let Some(block) = block.filter(|_| self == Self::BlockKeptByPaused) else { return };
        if scheduler.pool().n_references(block) > 0 {
            scheduler.pool_mut().retain(block);
        }
    }

    /// The pool while a step is in flight.
    pub fn spoil_pool(self, rng: &mut Rng, batch: &ScheduledBatch, scheduler: &mut Scheduler) {
        let Some(row) = rng.choice(batch.rows()) else { return };
        let Some(&block) = rng.choice(batch.blocks(row)) else { return };
        let n_references = scheduler.pool().n_references(block);
        match self {
            Self::LostReference if n_references > 1 => scheduler.pool_mut().release(block),
            Self::FreedInFlight if one_in(rng, 20) && n_references == 1 => {
                scheduler.pool_mut().release(block)
            }
            Self::LeakedReference if one_in(rng, 20) => scheduler.pool_mut().retain(block),
            _ => {}
        }
    }

    /// The batch as the executor would have got it.
    pub fn spoil_batch(self, rng: &mut Rng, batch: &ScheduledBatch, n_blocks: u32) -> ScheduledBatch {
        let mut spoilt = ScheduledBatch::default();
        for row in batch.rows() {
            let (mut blocks, mut tokens) = (batch.blocks(row).to_vec(), batch.tokens(row));
            let (mut history, mut start, mut sequence) = (batch.history(row), row.start, row.sequence);
            if one_in(rng, 20) {
                let last = blocks.len() - 1;
                match self {
                    Self::WrongBlock => blocks[last] = BlockId((blocks[last].0 + 1) % n_blocks),
                    Self::StaleTable if last > 0 => blocks.swap(0, 1),
                    Self::OffByOneStart => start = start.saturating_sub(1),
                    Self::DroppedToken if tokens.len() > 1 => tokens = &tokens[..tokens.len() - 1],
                    Self::SkippedChunk if !row.sample => blocks = vec![BlockId(0); blocks.len()],
                    Self::IndexIgnored => sequence = SequenceId { index: 0, ..sequence },
                    Self::StaleHistory => history = &history[..history.len().saturating_sub(1)],
                    _ => {}
                }
            }
            spoilt.push(NewRow {
                sequence,
                start,
                n_prompt: row.n_prompt,
                next_prompt_token: row.next_prompt_token,
                sample: row.sample,
                sampling: row.sampling.clone(),
                tokens,
                blocks: &blocks,
                history,
            });
        }
        spoilt
    }

    /// The answers as core would have read them: from which row each row's answer comes.
    pub fn spoil_answer(self, row_idx: usize, output: &StepOutput) -> usize {
        match self {
            Self::SwappedAnswers if (row_idx ^ 1) < output.n_rows() => row_idx ^ 1,
            _ => row_idx,
        }
    }
}
