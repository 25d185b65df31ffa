//! Planted bugs: each changes a batch, an output or the pool as a mistake in the scheduler would.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{AdapterId, Request, SamplingParams, SequenceId, TenantId, TokenId};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, BlockLocation, BlockMove, MemorySlot, NewSequence, ScheduledBatch, StateSave,
    StateShare, StepOutput,
};
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use throng_core::scheduling::scheduler::{Scheduler, SchedulerConfig, SpeculationMethod};

use super::ledger::Ledger;
use super::requests::one_in;

/// The bugs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A sequence reads another block in place of its last one.
    WrongBlock,
    /// A sequence's first two blocks are exchanged.
    StaleTable,
    /// A sequence is computed one position too early.
    OffByOneStart,
    /// The last token of a chunk is not computed.
    DroppedToken,
    /// A chunk counts as computed although it did not run.
    SkippedChunk,
    /// The outputs of two sequences are exchanged.
    SwappedAnswers,
    /// All continuations use the same random numbers.
    IndexIgnored,
    /// The token history for penalties lacks the newest token.
    StaleHistory,
    /// The reference count of a shared block is too low.
    LostReference,
    /// A block is freed while a step uses it.
    FreedInFlight,
    /// A block is never freed.
    LeakedReference,
    /// The hash of a prefix lacks its tenant.
    HashWithoutTenant,
    /// A block is found by the hash of tokens that it does not hold.
    UnverifiedHit,
    /// A request is not paused although its reader is behind.
    LostPause,
    /// A request is not resumed although its reader has caught up.
    LostResume,
    /// A paused request keeps a block.
    BlockKeptByPaused,
    /// The position of a rejected draft is counted as computed.
    RejectedDraftCounted,
    /// A draft that differs from the chosen token is taken for an output token.
    WrongDraftAccepted,
    /// A block is published while drafts fill it, before they are accepted.
    DraftsPublished,
    /// Drafts are kept over a step that settled other tokens.
    DraftsKept,
    /// The mask of a constraint is that of the position before.
    MaskOfWrongPosition,
    /// A sequence is computed without its constraint.
    ConstraintLost,
    /// A sequence is computed without its adapter.
    AdapterLost,
    /// A sequence that goes on from computed tokens is computed without its adapter.
    AdapterLostLater,
    /// A beam is computed with another adapter.
    AdapterOfAnother,
    /// Prefixes are named without what stands in them beside text.
    HashWithoutMedia,
    /// A sequence is computed without what stands in its prompt beside text.
    MediaLost,
    /// Prefixes are named without their adapter.
    HashWithoutAdapter,
    /// Drafts are looked up although speculation is off.
    SpeculationNotOff,
    /// Drafts are looked up after too short a match.
    ShortMatch,
    /// The last block of a beam that goes on after another is not copied.
    CopyLost,
    /// Copies another block.
    WrongCopy,
    /// The draft model is asked although it is not to be used.
    DraftModelNotOff,
    /// The executor does not tell which drafts it made.
    OwnDraftsHidden,
    /// A draft that the executor made is accepted although it is wrong.
    WrongOwnDraftAccepted,
    /// Drafts are computed for a request that wants none.
    RequestWithoutDraftsIgnored,
    /// A sequence goes on from the recurrent state of another slot.
    WrongState,
    /// A sequence goes on from the state of a sequence without tokens.
    StateForgotten,
    /// A state is kept as the checkpoint of a block that does not end there.
    StateSavedTooEarly,
    /// A state is not written to the slot of its checkpoint.
    StateNotSaved,
    /// The state of a beam that goes on after another is not copied.
    StateCopyLost,
    /// A slot of state is given to another sequence while a step writes it.
    StateFreedInFlight,
    /// The token that is carried from the step before is that of another sequence.
    WrongTokenCarried,
    /// A token is computed that should have been carried from the step before.
    CarriedTokenLost,
    /// A step ends with the answers of the one after it.
    AnswersOfTwoSteps,
    /// What was read from the store does not reach its block.
    LostLoad,
    /// A block is copied for another engine before its own bytes have come.
    ExportBeforeLoad,
}

/// What a bug that mixes up steps remembers of the step before.
#[derive(Default)]
pub struct Memory {
    /// The draft that was rejected first, by sequence.
    rejected: BTreeMap<SequenceId, TokenId>,
    /// The drafts that were proposed.
    drafts: BTreeMap<SequenceId, Vec<TokenId>>,
}

impl Memory {
    /// Remembers a step, and gives the drafts it had of the step before.
    pub fn note(
        &mut self,
        batch: &ScheduledBatch,
        output: &StepOutput,
    ) -> BTreeMap<SequenceId, Vec<TokenId>> {
        self.rejected.clear();
        let mut drafts = BTreeMap::new();
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate().take(output.n_sequences()) {
            let n_accepted = output.sampled(sequence_idx).len().saturating_sub(1);
            if let Some(&draft) = batch.drafts(scheduled).get(n_accepted) {
                self.rejected.insert(scheduled.id, draft);
            }
            drafts.insert(scheduled.id, output.drafts(sequence_idx).to_vec());
        }
        std::mem::replace(&mut self.drafts, drafts)
    }
}

impl Bug {
    pub const ALL: [Self; 47] = [
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
        Self::RejectedDraftCounted,
        Self::WrongDraftAccepted,
        Self::DraftsPublished,
        Self::DraftsKept,
        Self::MaskOfWrongPosition,
        Self::ConstraintLost,
        Self::AdapterLost,
        Self::AdapterLostLater,
        Self::AdapterOfAnother,
        Self::HashWithoutAdapter,
        Self::HashWithoutMedia,
        Self::MediaLost,
        Self::SpeculationNotOff,
        Self::ShortMatch,
        Self::CopyLost,
        Self::WrongCopy,
        Self::DraftModelNotOff,
        Self::OwnDraftsHidden,
        Self::WrongOwnDraftAccepted,
        Self::RequestWithoutDraftsIgnored,
        Self::WrongState,
        Self::StateForgotten,
        Self::StateSavedTooEarly,
        Self::StateNotSaved,
        Self::StateCopyLost,
        Self::StateFreedInFlight,
        Self::WrongTokenCarried,
        Self::CarriedTokenLost,
        Self::AnswersOfTwoSteps,
        Self::LostLoad,
        Self::ExportBeforeLoad,
    ];

    /// The configuration as the scheduler gets it.
    pub fn spoil_config(self, config: &SchedulerConfig) -> SchedulerConfig {
        let config = config.clone();
        match self {
            Self::SpeculationNotOff => {
                SchedulerConfig { speculation: SpeculationMethod::PromptLookup, ..config }
            }
            Self::DraftModelNotOff => {
                SchedulerConfig { speculation: SpeculationMethod::DraftModel, ..config }
            }
            Self::ShortMatch => SchedulerConfig { prompt_lookup_min: 1, ..config },
            _ => config,
        }
    }

    /// The request as the scheduler gets it.
    pub fn spoil_request(self, request: Request) -> Request {
        match self {
            Self::HashWithoutTenant => Request { tenant: TenantId::anonymous(), ..request },
            Self::RequestWithoutDraftsIgnored => {
                let sampling = SamplingParams { max_draft_tokens: u32::MAX, ..(*request.sampling).clone() };
                Request { sampling: Arc::new(sampling), ..request }
            }
            Self::HashWithoutAdapter => Request { adapter: None, ..request },
            Self::HashWithoutMedia => Request { media: None, ..request },
            _ => request,
        }
    }

    /// Changes the pool before a request arrives.
    pub fn spoil_pool_for(self, request: &Request, scheduler: &mut Scheduler) {
        let Some(tokens) = request.prompt.first_chunk() else { return };
        if self != Self::UnverifiedHit {
            return;
        }
        let root = root_of(request);
        let (hash, pool) = (root.child(tokens), scheduler.pool_mut());
        let content = BlockContent { hash, parent: root, tokens: *tokens, n_before: 0 };
        if pool.find(&content).is_some() || pool.n_free() == 0 {
            return;
        }
        if let Some(block) = pool.allocate() {
            pool.publish(block, &content);
            pool.release(block);
        }
    }

    /// Changes the pool before a request is paused that has a running sequence with this block.
    pub fn spoil_pause(self, block: Option<BlockId>, scheduler: &mut Scheduler) {
        let Some(block) = block.filter(|_| self == Self::BlockKeptByPaused) else { return };
        if scheduler.pool().n_references(block) > 0 {
            scheduler.pool_mut().retain(block);
        }
    }

    /// Changes the pool while a step is in flight.
    pub fn spoil_pool(self, rng: &mut Rng, batch: &ScheduledBatch, scheduler: &mut Scheduler) {
        let Some(scheduled) = rng.choice(batch.sequences()) else { return };
        let Some(&block) = rng.choice(batch.blocks(scheduled)) else { return };
        let n_references = scheduler.pool().n_references(block);
        match self {
            Self::LostReference if n_references > 1 => scheduler.pool_mut().release(block),
            Self::FreedInFlight if one_in(rng, 20) && n_references == 1 => {
                scheduler.pool_mut().release(block)
            }
            Self::LeakedReference if one_in(rng, 20) => scheduler.pool_mut().retain(block),
            Self::StateFreedInFlight if one_in(rng, 20) => {
                let slot = scheduled.state.map(|state| state.to);
                slot.into_iter().for_each(|slot| scheduler.pool_mut().states_mut().release(slot));
            }
            _ => {}
        }
    }

    /// The pool while a step with drafts is in flight.
    pub fn publish_drafts(self, batch: &ScheduledBatch, ledger: &Ledger, scheduler: &mut Scheduler) {
        for scheduled in batch
            .sequences()
            .iter()
            .filter(|scheduled| self == Self::DraftsPublished && scheduled.n_drafts > 0)
        {
            let Some((request, mut tokens)) = ledger.tokens_of(scheduled.id) else { continue };
            let n_known = tokens.len();
            tokens.extend_from_slice(batch.drafts(scheduled));
            let root = root_of(request);
            let (mut parent, mut pool) = (root, scheduler.pool_mut());
            for (tokens, (i, &block)) in
                tokens.as_chunks().0.iter().zip(batch.blocks(scheduled).iter().enumerate())
            {
                let hash = parent.child(tokens);
                let content = BlockContent { hash, parent, tokens: *tokens, n_before: i as u32 };
                if (i + 1) * BLOCK_TOKENS > n_known && pool.find(&content).is_none() {
                    pool.publish(block, &content);
                }
                (parent, pool) = (hash, scheduler.pool_mut());
            }
        }
    }

    /// The batch as the executor would have got it.
    pub fn spoil_batch(
        self,
        rng: &mut Rng,
        batch: &ScheduledBatch,
        (memory, ledger): (&Memory, &Ledger),
        n_blocks: u32,
    ) -> ScheduledBatch {
        let mut spoilt = ScheduledBatch::default();
        for &copy in batch.moves() {
            match self {
                Self::CopyLost => {}
                Self::WrongCopy => {
                    let from = BlockLocation::device(BlockId((copy.from.block.0 + 1) % n_blocks));
                    spoilt.push_move(BlockMove { from, ..copy });
                }
                _ => spoilt.push_move(copy),
            }
        }
        if self != Self::StateCopyLost {
            batch.state_copies().iter().for_each(|&copy| spoilt.push_state_copy(copy));
        }
        for scheduled in batch.sequences() {
            let (mut blocks, mut tokens) =
                (batch.blocks(scheduled).to_vec(), batch.tokens(scheduled)[..scheduled.n_known()].to_vec());
            let (mut history, mut start, mut sequence) =
                (batch.history(scheduled, 0), scheduled.start, scheduled.id);
            let (mut output, mut constraint) = (batch.output(scheduled, 0), scheduled.constraint.clone());
            let mut adapter = scheduled.adapter;
            if self == Self::HashWithoutAdapter {
                adapter = ledger.tokens_of(sequence).and_then(|(request, _)| Some(request.adapter?.id));
            }
            if self == Self::RejectedDraftCounted
                && let Some(&draft) = memory.rejected.get(&sequence)
                && start >= scheduled.n_prompt
            {
                tokens[0] = draft;
            }
            if one_in(rng, 20) {
                let last = blocks.len() - 1;
                match self {
                    Self::WrongBlock => blocks[last] = BlockId((blocks[last].0 + 1) % n_blocks),
                    Self::StaleTable if last > 0 => blocks.swap(0, 1),
                    Self::OffByOneStart => start = start.saturating_sub(1),
                    Self::DroppedToken if tokens.len() > 1 => tokens.truncate(tokens.len() - 1),
                    Self::SkippedChunk if !scheduled.sample => blocks = vec![BlockId(0); blocks.len()],
                    Self::IndexIgnored => sequence = SequenceId { index: 0, ..sequence },
                    Self::StaleHistory => history = &history[..history.len().saturating_sub(1)],
                    Self::MaskOfWrongPosition => output = &output[..output.len().saturating_sub(1)],
                    Self::ConstraintLost => constraint = None,
                    Self::AdapterLost => adapter = None,
                    Self::AdapterLostLater if start > 0 => adapter = None,
                    Self::AdapterOfAnother if scheduled.sampling.beams.is_some() => {
                        adapter = adapter.map(|AdapterId(id)| AdapterId(1 - id));
                    }
                    _ => {}
                }
            }
            spoilt.push(NewSequence {
                id: sequence,
                start,
                n_prompt: scheduled.n_prompt,
                next_prompt_token: scheduled.next_prompt_token,
                sample: scheduled.sample,
                sampling: scheduled.sampling.clone(),
                output: if constraint.is_some() { output } else { &[] },
                constraint,
                adapter,
                tokens: &tokens,
                drafts: batch.drafts(scheduled),
                blocks: &blocks,
                history,
            });
            let request = ledger.tokens_of(sequence).map(|(request, _)| request);
            let media = match self {
                Self::HashWithoutMedia => request.and_then(|request| request.media.clone()),
                Self::MediaLost if one_in(rng, 20) => None,
                _ => scheduled.media.clone(),
            };
            media.into_iter().for_each(|media| spoilt.set_media(media, None));
            if scheduled.n_to_draft > 0 {
                spoilt.ask_for_drafts(scheduled.n_to_draft);
            }
            if let Some(state) = scheduled.state {
                spoilt.set_state(self.spoil_state(rng, state, tokens.len()));
            }
            match (self, scheduled.carried) {
                (_, None) | (Self::CarriedTokenLost, _) => {}
                (Self::WrongTokenCarried, Some(sequence_idx)) => {
                    spoilt.carry_token(sequence_idx.saturating_sub(1));
                }
                (_, Some(sequence_idx)) => spoilt.carry_token(sequence_idx),
            }
        }
        spoilt
    }

    /// What the step does with a sequence's recurrent state, as the executor would have got it.
    fn spoil_state(self, rng: &mut Rng, state: StateShare, n_tokens: usize) -> StateShare {
        // A bug in the start of a sequence drops tokens; the states after those that are left are kept.
        let within = |save: StateSave| StateSave { n_tokens: save.n_tokens.min(n_tokens as u32), ..save };
        let state = StateShare { saves: state.saves.map(|save| save.map(within)), ..state };
        let is_spoilt = one_in(rng, 20);
        match self {
            Self::WrongState if is_spoilt && state.from.is_some() => {
                StateShare { from: Some(MemorySlot(rng.u32(0..=state.to.0))), ..state }
            }
            Self::StateForgotten if is_spoilt => StateShare { from: None, ..state },
            Self::StateSavedTooEarly => {
                let earlier = |save: StateSave| StateSave { n_tokens: (save.n_tokens - 1).max(1), ..save };
                StateShare { saves: state.saves.map(|save| save.map(earlier)), ..state }
            }
            Self::StateNotSaved => StateShare { saves: [None; 2], ..state },
            _ => state,
        }
    }

    /// The outputs as the scheduler reads them: for each sequence, the index of the output that it gets.
    pub fn spoil_answer(self, sequence_idx: usize, output: &StepOutput) -> usize {
        match self {
            Self::SwappedAnswers if (sequence_idx ^ 1) < output.n_sequences() => sequence_idx ^ 1,
            _ => sequence_idx,
        }
    }
}

/// The root of the names of a request's blocks.
fn root_of(request: &Request) -> BlockHash {
    let adapter = request.adapter.map(|adapter| adapter.digest);
    BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter)
}
