//! One continuation of a request: `Waiting` → `Running` → `Finished`, and `Paused` while its reader is
//! behind. The states are types, so that only a running sequence can hold blocks, and a paused or finished
//! one cannot run. Does not know the order of sequences.

mod beams;
mod encodings;
mod masks;
mod plain;
mod recurrent;
mod restoring;
mod shares;

use std::sync::Arc;

use crate::prompt_media::PromptMedia;
use crate::request::{FinishReason, MAX_CACHE_MARKS, Priority, Request, SequenceId, TokenId};
use crate::scheduling::batch::{BLOCK_TOKENS, BlockId, StoreSlot};
use crate::scheduling::block_hash::{BlockContent, BlockHash, BlockTokens};
use crate::scheduling::block_pool::BlockPool;
use crate::scheduling::block_table::{BlockTable, blocks_for};
use crate::scheduling::speculation::{DraftSource, Speculation};
use crate::time::{Nanos, Timestamp};
use crate::timeline::Timeline;
use encodings::Encodings;
use masks::MaskState;
pub use masks::SLOW_MASKS;
pub(crate) use plain::PlainDecoding;
use recurrent::RecurrentState;
use restoring::Restoring;
pub use restoring::{Restorable, RestoreLimits, Start, StateSource};
pub(crate) use shares::Share;
use shares::Shares;

/// Order within a tenant, smaller ranks first: priority, then arrival, then the index within the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Priority of the request, or 0 if priorities are off.
    pub priority: Priority,
    /// Number of earlier requests.
    pub arrival: u64,
    /// Index among the request's continuations.
    pub index: u32,
}

/// State of a sequence without blocks that may run: not started yet, preempted, or paused before.
#[derive(Debug)]
pub struct Waiting {
    /// Whether its tenant is charged for the tokens that are computed when it starts; not after a
    /// preemption, which its tenant did not cause.
    pub(crate) is_charged: bool,
    /// Whether blocks may come back for it; not after a recurrent state did not come.
    pub(crate) may_restore: bool,
}

/// State of a sequence without blocks that may not start before its reader has caught up.
#[derive(Debug)]
pub struct Paused {
    is_charged: bool,
}

/// State of a sequence with blocks. What each step reads stands in front, on few cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct Running {
    /// Number of tokens whose keys and values are in the blocks.
    n_computed: usize,
    /// Number of new tokens in the planned step, drafts included; 0 if it has no share in it.
    pub(crate) n_scheduled: usize,
    /// Number of drafts among them.
    pub(crate) n_scheduled_drafts: usize,
    /// Number of drafts that the draft model may make in the planned step.
    pub(crate) n_to_draft: usize,
    /// Number of leading blocks whose content has a name.
    n_published: usize,
    /// Shares in the steps in flight.
    shares: Shares,
    table: BlockTable,
    /// Blocks being restored from a store; `None` when all are there.
    restoring: Option<Box<Restoring>>,
    /// Recurrent state; `None` if the model has no recurrent layers.
    recurrent: Option<Box<RecurrentState>>,
    /// Block whose content is copied into the last block before the next token is computed; holds a
    /// reference of its own.
    copied_block: Option<BlockId>,
    /// Reason why it ends with the step that is being completed.
    pub(crate) ending: Option<FinishReason>,
    /// Progress with the pictures of the prompt.
    encodings: Encodings,
    /// Facts for shares without content; `None` if its steps need their content.
    pub(crate) plain: Option<PlainDecoding>,
    /// Masks of the constraint.
    masks: MaskState,
    /// Drafts of the tokens after the newest one, to be scheduled with it. They are valid only for these
    /// tokens: they are dropped after the next step of the sequence and at the end of the running state.
    drafts: Vec<TokenId>,
    /// Source of the sequence's drafts.
    source: DraftSource,
    /// Whether the sequence's prompt is computed before those of tenants that request more.
    pub(crate) has_low_share: bool,
    /// State of prompt lookup and acceptance rates.
    pub(crate) speculation: Speculation,
}

/// State of a sequence that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Reason of the end.
    pub reason: FinishReason,
}

/// One continuation of a request in the state `S`.
#[derive(Debug)]
#[repr(C)]
pub struct Sequence<S> {
    pub(crate) rank: Rank,
    pub(crate) request: Arc<Request>,
    /// Prompt and output; empty until it first runs or is resumed, so that waiting continuations share one
    /// prompt.
    tokens: Vec<TokenId>,
    pub(crate) state: S,
    pub(crate) timeline: Timeline,
    /// Root of the names of its blocks, equal for all sequences that may share blocks.
    root: BlockHash,
    /// Names of leading full blocks, computed as needed.
    hashes: Vec<BlockHash>,
}

impl<S> Sequence<S> {
    /// Reason why its newest output token ends it, if it does. A sequence has at most `limit` tokens.
    pub fn ending(&self, limit: usize) -> Option<FinishReason> {
        let n_output = self.timeline.output_tokens;
        let token = *self.tokens().last().filter(|_| n_output > 0)?;
        let by_request = self.request.sampling.finish_at(token, n_output);
        by_request.or_else(|| (self.tokens().len() >= limit).then_some(FinishReason::Length))
    }

    /// Id of the sequence.
    pub fn id(&self) -> SequenceId {
        SequenceId { request: self.request.id, index: self.rank.index }
    }

    /// Root of the names of its blocks.
    pub fn root(&self) -> BlockHash {
        self.root
    }

    /// Prompt and output so far.
    pub fn tokens(&self) -> &[TokenId] {
        if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens }
    }

    /// Number of prompt tokens.
    pub fn n_prompt(&self) -> usize {
        self.request.prompt.len()
    }

    /// Content of full block `block_idx`.
    fn block_content(&mut self, block_idx: usize) -> BlockContent {
        while self.hashes.len() <= block_idx {
            let parent = self.hashes.last().copied().unwrap_or(self.root);
            let idx = self.hashes.len();
            let hash = parent.child_with(&self.block_tokens(idx), self.request.media.as_deref(), idx);
            self.hashes.push(hash);
        }
        let parent = if block_idx == 0 { self.root } else { self.hashes[block_idx - 1] };
        let (hash, tokens) = (self.hashes[block_idx], self.block_tokens(block_idx));
        BlockContent { hash, parent, tokens, n_before: block_idx as u32 }
    }

    /// Whether the first `n_tokens` tokens are equal, and the media that they represent.
    fn begins_like<T>(&self, other: &Sequence<T>, n_tokens: usize) -> bool {
        let has_equal_media = match (&self.request.media, &other.request.media) {
            (None, None) => true,
            (own, other) => {
                let text = PromptMedia::default();
                let [own, other] = [own, other].map(|media| media.as_deref().unwrap_or(&text));
                own.is_equal_before(other, n_tokens)
            }
        };
        has_equal_media && other.tokens().get(..n_tokens) == self.tokens().get(..n_tokens)
    }

    fn block_tokens(&self, block_idx: usize) -> BlockTokens {
        let block = &self.tokens()[block_idx * BLOCK_TOKENS..][..BLOCK_TOKENS];
        block.try_into().expect("the slice has the length of a block")
    }

    fn into_state<T>(self, state: T) -> Sequence<T> {
        let Self { request, rank, timeline, root, tokens, hashes, state: _ } = self;
        Sequence { request, rank, timeline, root, tokens, hashes, state }
    }
}

impl Sequence<Waiting> {
    /// Creates a continuation that has not started. It continues from the output that the request has for
    /// it; a beam search begins with the prompt.
    pub fn new(request: Arc<Request>, rank: Rank, root: BlockHash, now: Timestamp) -> Self {
        let output = match request.beam_search() {
            Some(_) => &[],
            None => request.output_so_far(rank.index).unwrap_or_default(),
        };
        let tokens = if output.is_empty() { vec![] } else { [&request.prompt, output].concat() };
        let timeline = Timeline { output_tokens: output.len() as u32, ..Timeline::new(now) };
        let state = Waiting { is_charged: true, may_restore: true };
        Self { request, rank, timeline, root, tokens, hashes: vec![], state }
    }

    /// Appends to `hits` the cached blocks with the beginning of its tokens. The last token is always left
    /// to compute, since its logits are needed.
    pub fn find_cached(&mut self, pool: &BlockPool, hits: &mut Vec<BlockId>) {
        for block_idx in 0..(self.tokens().len() - 1) / BLOCK_TOKENS {
            let content = self.block_content(block_idx);
            let Some(block) = pool.find(&content) else { return };
            hits.push(block);
        }
    }

    /// Slots of the pool's store with the blocks that follow the first `n_hits`, except the last token.
    pub fn find_stored(&mut self, n_hits: usize, pool: &BlockPool) -> Vec<StoreSlot> {
        let Some(store) = pool.store() else { return Vec::new() };
        let last = (self.tokens().len() - 1) / BLOCK_TOKENS;
        (n_hits..last).map_while(|block_idx| store.find(&self.block_content(block_idx))).collect()
    }

    /// Whether `other` is computing the block that this sequence needs after its first `n_hits`, and they may
    /// share it.
    pub fn could_share_next(&self, n_hits: usize, other: &Sequence<Running>) -> bool {
        if let Some(could_share) = self.could_share_state(n_hits, other) {
            return could_share;
        }
        let end = (n_hits + 1) * BLOCK_TOKENS;
        self.root == other.root
            && self.tokens().len() > end
            && other.n_computed() < end
            && self.begins_like(other, end)
    }

    /// Starts the sequence with the cached blocks of its beginning, to which it adds references, as `start`
    /// says. It will not have more than `max_tokens` tokens.
    pub fn start(
        mut self,
        hits: &[BlockId],
        start: &Start,
        max_tokens: usize,
        pool: &mut BlockPool,
        now: Timestamp,
    ) -> Sequence<Running> {
        let n_output = self.request.sampling.max_tokens as usize;
        let n_most = max_tokens.min(self.n_prompt().saturating_add(n_output));
        self.tokens.reserve_exact(n_most.saturating_sub(self.tokens.len()));
        if self.tokens.is_empty() {
            self.tokens.extend_from_slice(&self.request.prompt);
        }
        // Reserved once, so that a token costs no allocation.
        let n_blocks = blocks_for(self.tokens.capacity());
        self.hashes.reserve_exact(n_blocks - self.hashes.len());
        let mut table = BlockTable::with_capacity(n_blocks);
        for &block in hits {
            pool.retain(block);
            table.push(block);
        }
        let n_full = if pool.remembers_dropped() { (self.tokens.len() - 1) / BLOCK_TOKENS } else { 0 };
        for block_idx in hits.len()..n_full {
            pool.note_missed(self.block_content(block_idx).hash);
        }
        let n_computed = start.n_begun * BLOCK_TOKENS;
        if self.timeline.first_scheduled.is_none() {
            self.timeline.first_scheduled = Some(now);
            self.timeline.cached_tokens = n_computed.min(self.n_prompt()) as u32;
        }
        let n_published = hits.len();
        let recurrent = self.begin_state(hits.len(), start, pool);
        self.into_state(Running {
            table,
            n_computed,
            n_published,
            copied_block: None,
            recurrent: recurrent.map(Box::new),
            masks: MaskState::default(),
            encodings: Encodings::default(),
            restoring: None,
            shares: Shares::default(),
            n_scheduled: 0,
            n_scheduled_drafts: 0,
            has_low_share: false,
            drafts: Vec::new(),
            source: DraftSource::default(),
            n_to_draft: 0,
            speculation: Speculation::default(),
            plain: None,
            ending: None,
        })
    }

    /// Pauses the sequence until it is resumed.
    pub fn pause(self) -> Sequence<Paused> {
        let is_charged = self.state.is_charged;
        self.into_state(Paused { is_charged })
    }

    /// Ends the sequence before it has run.
    pub fn finish(mut self, reason: FinishReason, now: Timestamp) -> Sequence<Finished> {
        self.timeline.finished = Some(now);
        self.into_state(Finished { reason })
    }
}

/// Tokens of one sequence in a step that has been executed.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepCounts {
    /// Number of known tokens that were computed.
    pub n_known: usize,
    /// Number of drafts that the step had room for.
    pub n_drafts: usize,
    /// Number of drafts that were verified.
    pub n_made: usize,
    /// Number of drafts that were accepted.
    pub n_accepted: usize,
    /// Number of tokens that were appended since, accepted drafts included.
    pub n_pushed: usize,
}

impl Sequence<Running> {
    /// Number of tokens whose keys and values are in the blocks.
    pub fn n_computed(&self) -> usize {
        self.state.n_computed
    }

    /// Blocks of the sequence.
    pub fn blocks(&self) -> &[BlockId] {
        self.state.table.as_slice()
    }

    /// Number of further blocks that the sequence needs to hold its first `n_tokens` tokens.
    pub fn n_missing_blocks(&self, n_tokens: usize) -> usize {
        blocks_for(n_tokens).saturating_sub(self.state.table.len())
    }

    /// Allocates the missing blocks for the sequence's first `n_tokens` tokens; the pool must have them.
    pub fn allocate(&mut self, n_tokens: usize, pool: &mut BlockPool) {
        for _ in 0..self.n_missing_blocks(n_tokens) {
            self.state.table.push(pool.allocate().expect("the planner counted the blocks"));
        }
    }

    /// Drafts of the tokens after the newest one.
    pub fn drafts(&self) -> &[TokenId] {
        &self.state.drafts
    }

    /// Finds up to `n` tokens that followed an earlier occurrence of at least the last `min_match` tokens.
    /// Returns whether there were any.
    pub fn look_up(&mut self, min_match: usize, n: usize) -> bool {
        !self.state.speculation.look_up(&self.tokens, min_match, n).is_empty()
    }

    /// Makes the first `n` looked-up tokens the sequence's drafts.
    pub fn use_looked_up(&mut self, n: usize) {
        let Running { speculation, drafts, source, .. } = &mut self.state;
        let looked_up = speculation.looked_up();
        drafts.clear();
        drafts.extend_from_slice(&looked_up[..n.min(looked_up.len())]);
        *source = DraftSource::Lookup;
    }

    /// Leaves up to `n` drafts of this step to the draft model.
    pub fn leave_drafts_to_model(&mut self, n: usize) {
        self.state.n_to_draft = n;
        self.state.source = DraftSource::Model;
    }

    /// Replaces the drafts.
    pub fn set_drafts(&mut self, drafts: &[TokenId]) {
        self.state.source = DraftSource::Proposed;
        self.state.n_to_draft = 0;
        self.state.drafts.clear();
        self.state.drafts.extend_from_slice(drafts);
    }

    /// Notes the outcome of a step. Work for drafts that were not accepted is void, and blocks that only
    /// these needed are released.
    pub fn advance(&mut self, step: StepCounts, pool: &mut BlockPool) {
        let StepCounts { n_known, n_drafts, n_made, n_accepted, n_pushed } = step;
        self.forget_copy(pool);
        let new_tokens = &self.tokens[self.tokens.len() - n_pushed..];
        self.state.speculation.observe(self.state.source, n_made, n_accepted, new_tokens);
        self.state.n_computed += n_known + n_accepted;
        if n_drafts > n_accepted {
            self.state.table.truncate(blocks_for(self.tokens.len()), pool);
        }
    }

    /// Names the full blocks that were computed. Their tokens must have been appended before.
    pub fn publish(&mut self, pool: &mut BlockPool) {
        self.publish_blocks(pool);
        self.publish_states(pool);
    }

    /// Names the full blocks of a model without recurrent layers.
    pub(crate) fn publish_blocks(&mut self, pool: &mut BlockPool) {
        for block_idx in self.state.n_published..self.state.n_computed / BLOCK_TOKENS {
            let content = self.block_content(block_idx);
            let blocks = self.state.table.as_slice();
            let before = block_idx.checked_sub(1).map(|before| blocks[before]);
            pool.publish_after(before, blocks[block_idx], &content);
            self.state.n_published = block_idx + 1;
        }
    }

    /// Appends an output token.
    pub fn push(&mut self, token: TokenId, now: Timestamp) {
        self.tokens.push(token);
        self.timeline.note_token(now);
    }

    /// Releases its blocks and waits again, with all its tokens.
    pub fn preempt(mut self, pool: &mut BlockPool) -> Sequence<Waiting> {
        self.give_back(pool);
        self.timeline.n_preemptions += 1;
        self.into_state(Waiting { is_charged: false, may_restore: true })
    }

    /// Releases its blocks until it is resumed, and keeps all its tokens.
    pub fn pause(mut self, pool: &mut BlockPool) -> Sequence<Paused> {
        self.give_back(pool);
        self.into_state(Paused { is_charged: true })
    }

    /// Releases its blocks and ends.
    pub fn finish(
        mut self,
        reason: FinishReason,
        pool: &mut BlockPool,
        now: Timestamp,
    ) -> Sequence<Finished> {
        self.give_back(pool);
        self.timeline.finished = Some(now);
        self.into_state(Finished { reason })
    }

    fn give_back(&mut self, pool: &mut BlockPool) {
        self.stop_restoring(pool);
        if let Some(store) = pool.store_mut() {
            store.touch(&self.hashes);
        }
        self.forget_copy(pool);
        self.release_state(pool);
        self.mark_blocks(pool);
        std::mem::take(&mut self.state.table).release(pool);
    }
}

impl Sequence<Running> {
    /// Marks the blocks that the client asked to keep.
    fn mark_blocks(&self, pool: &mut BlockPool) {
        for mark in self.request.cache_marks.iter().take(MAX_CACHE_MARKS) {
            let n_blocks = (mark.n_tokens as usize / BLOCK_TOKENS).min(self.blocks().len());
            let keep = Nanos::from_ms(u64::from(mark.keep_s) * 1_000);
            pool.mark(&self.blocks()[..n_blocks], &self.request.tenant, keep);
        }
    }
}

impl Sequence<Paused> {
    /// Makes the sequence wait again.
    pub fn resume(self) -> Sequence<Waiting> {
        let is_charged = self.state.is_charged;
        self.into_state(Waiting { is_charged, may_restore: true })
    }

    /// Ends the sequence without resuming it.
    pub fn finish(mut self, reason: FinishReason, now: Timestamp) -> Sequence<Finished> {
        self.timeline.finished = Some(now);
        self.into_state(Finished { reason })
    }
}
