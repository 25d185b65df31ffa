//! An executor without a model, to prove bookkeeping: a slot of its cache holds a digest of the token and of
//! the slot before it, read through the block table, and a sequence's answer is a hash of every slot it can
//! see, so that a wrong block or a token too many changes tokens. [`paper_answer`] computes the expected
//! answer of a request without any cache. Does not know how batches are made.

mod rules;

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{FinishReason, Request, TokenId};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, BlockLocation, BlockMove, DraftPass, MemorySlot, ScheduledBatch,
    ScheduledSequence, StepOutput, Tier,
};
use throng_core::scheduling::block_exchange::{
    BlockExchangeError, BlockLayout, ExportedBlocks, check_blocks,
};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::time::Nanos;

pub use crate::beam_reference::PaperToken;
use crate::beam_reference::reference_beam_search;
use crate::paper_states::{PaperStates, Seen, mix};
use rules::{Computed, Rules, digest};

/// Initial value of the state before the first slot.
const BEFORE_FIRST: u64 = 0x5bd1_e995_9d1b_58c7;

/// Stated duration of a pass of the draft model.
const PASS_TIME: Nanos = Nanos(1_000);

/// An executor that computes digests.
#[derive(Debug)]
pub struct PaperExecutor {
    capacity: ExecutorCapacity,
    slots: Vec<u64>,
    /// Blocks of the host's tier, as many slots each.
    host_slots: Vec<u64>,
    states: PaperStates,
    /// Proposes drafts, up to this number a sequence; none: no drafts.
    drafts: Option<(Rng, usize)>,
    /// One in this many masks that are not evaluated is late; none: the executor evaluates them itself.
    late_masks: Option<(Rng, u32)>,
    /// The answers of the steps that were submitted and not collected, the oldest first.
    in_flight: VecDeque<StepOutput>,
    /// The last token that was chosen for each sequence of the step submitted last.
    chosen: Vec<Option<TokenId>>,
}

impl PaperExecutor {
    /// An executor of this capacity, with a cache of arbitrary content.
    pub fn new(capacity: ExecutorCapacity) -> Self {
        let n_slots = capacity.n_blocks as u64 * BLOCK_TOKENS as u64;
        Self {
            capacity,
            slots: (0..n_slots).map(|slot| mix(slot, 0xdead)).collect(),
            host_slots: Vec::new(),
            states: PaperStates::new(capacity.n_state_slots),
            drafts: None,
            late_masks: None,
            in_flight: VecDeque::new(),
            chosen: Vec::new(),
        }
    }

    /// Proposes up to `most` drafts of each sequence, about a quarter of them wrong, and makes the requested
    /// number of its own drafts.
    pub fn with_drafts(self, rng: Rng, most: usize) -> Self {
        Self { drafts: Some((rng, most)), ..self }
    }

    /// Adds room for `n` blocks in the host's tier.
    pub fn with_host_blocks(self, n: u32) -> Self {
        let n_slots = u64::from(n) * BLOCK_TOKENS as u64;
        Self { host_slots: (0..n_slots).map(|slot| mix(slot, 0x4057)).collect(), ..self }
    }

    /// Now and then leaves out of a step sequences whose masks are not evaluated.
    pub fn with_late_masks(self, rng: Rng, one_in: u32) -> Self {
        Self { late_masks: Some((rng, one_in.max(1))), ..self }
    }

    /// Whether a sequence gets no token because of its masks.
    fn is_left_out(&mut self, scheduled: &ScheduledSequence) -> bool {
        let Some((rng, one_in)) = &mut self.late_masks else { return false };
        let pending = scheduled.masks.as_ref().filter(|masks| masks.get().is_none());
        let Some(masks) = pending.filter(|_| scheduled.may_be_left_out()) else { return false };
        rng.u32(0..*one_in) == 0 && masks.get_or_await().is_none()
    }

    fn slot(blocks: &[BlockId], position: usize) -> usize {
        blocks[position / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
    }

    /// The slots of a block in a tier that the executor has.
    fn block_mut(&mut self, location: BlockLocation) -> &mut [u64] {
        let slots = if location.tier == Tier::Host { &mut self.host_slots } else { &mut self.slots };
        &mut slots[location.block.0 as usize * BLOCK_TOKENS..][..BLOCK_TOKENS]
    }

    /// The layout of its blocks, if these exist and no step is in flight.
    fn idle_layout(&self, blocks: &[BlockId]) -> Result<BlockLayout, BlockExchangeError> {
        if !self.in_flight.is_empty() {
            return Err(BlockExchangeError::StepInFlight);
        }
        check_blocks(blocks, self.capacity.n_blocks)?;
        self.block_layout().ok_or(BlockExchangeError::Unsupported)
    }

    fn run(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) {
        for BlockMove { from, to } in batch.moves() {
            let block: [u64; BLOCK_TOKENS] = self.block_mut(*from).try_into().expect("the slots of a block");
            self.block_mut(*to).copy_from_slice(&block);
        }
        self.states.copy(batch.state_copies());
        let (mut filled, mut all_drafts) = (ScheduledBatch::default(), Vec::new());
        let left_out: Vec<bool> =
            batch.sequences().iter().map(|scheduled| self.is_left_out(scheduled)).collect();
        for (scheduled, is_left_out) in batch.sequences().iter().zip(&left_out) {
            let drafts = if *is_left_out { Vec::new() } else { self.make_drafts(batch, scheduled) };
            all_drafts.push(drafts);
            filled.push_drafted(batch, scheduled, all_drafts.last().expect("it was pushed"));
        }
        for (sequence_idx, scheduled) in filled.sequences().iter().enumerate() {
            output.begin_sequence();
            self.run_sequence(&filled, scheduled, left_out[sequence_idx], output);
            output.set_own_drafts(sequence_idx, &all_drafts[sequence_idx]);
        }
        let n_passes = all_drafts.iter().map(Vec::len).max().unwrap_or(0);
        let pass = DraftPass { n_tokens: 1, n_attended: 1, took: PASS_TIME };
        output.draft_passes.resize(n_passes, pass);
    }

    fn run_sequence(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &ScheduledSequence,
        is_left_out: bool,
        output: &mut StepOutput,
    ) {
        // Nobody reads the answer where there is no token to carry.
        let carried = scheduled
            .carried
            .map(|sequence_idx| [self.chosen.get(sequence_idx).copied().flatten().unwrap_or(0)]);
        let tokens = match &carried {
            Some(token) => token,
            None => batch.tokens(scheduled),
        };
        let blocks = batch.blocks(scheduled);
        let start = scheduled.start as usize;
        let mut seen = Seen::default();
        for position in 0..start {
            seen.read(self.slots[Self::slot(blocks, position)]);
        }
        let mut seen = self.states.before(scheduled.state, seen);
        let rules = Rules::of_sequence(scheduled, self.capacity.vocabulary_size);
        // What is seen before each token to choose.
        let mut seen_before = Vec::new();
        for (i, &token) in tokens.iter().enumerate() {
            let position = start + i;
            let before = match position {
                0 => BEFORE_FIRST,
                _ => self.slots[Self::slot(blocks, position - 1)],
            };
            let slot = digest(before, (position, token), rules.computed);
            self.slots[Self::slot(blocks, position)] = slot;
            seen.read(slot);
            self.states.note(scheduled.state, (i + 1, tokens.len()), seen);
            let next = tokens.get(i + 1).copied().or(scheduled.next_prompt_token);
            if let (Some(n_top), Some(next)) = (scheduled.sampling.prompt_logprobs, next)
                && position + 1 < scheduled.n_prompt as usize
            {
                let token = seen.report(next, Some(n_top), rules.vocabulary_size);
                output.push_prompt(token.chosen, &token.top);
            }
            if i + 1 >= scheduled.n_known() {
                seen_before.push(seen);
            }
        }
        if is_left_out {
            output.leave_out_sequence();
        } else if scheduled.sample {
            self.choose_tokens(batch, scheduled, &rules, &seen_before, output);
        }
    }

    /// Chooses tokens up to the first that differs from the draft in its place.
    fn choose_tokens(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &ScheduledSequence,
        rules: &Rules<'_>,
        seen_before: &[Seen],
        output: &mut StepOutput,
    ) {
        let first_position = scheduled.start as usize + scheduled.n_known();
        let masks = scheduled.masks.as_ref().and_then(|masks| masks.get());
        for (n_accepted, &seen) in seen_before.iter().enumerate() {
            let position = first_position + n_accepted;
            let place = (position, batch.history(scheduled, n_accepted), batch.output(scheduled, n_accepted));
            let chosen = match masks.as_ref().map(|masks| masks.after(n_accepted)) {
                Some(mask) => mask
                    .map_err(Into::into)
                    .and_then(|mask| rules.choose_masked(seen, (place.0, place.1), mask)),
                None => rules.choose(seen, place),
            };
            let token = match chosen {
                Ok(token) => token,
                // The next step comes to this position again.
                Err(_) if n_accepted > 0 => return,
                Err(error) => return output.fail_sequence(error),
            };
            output.push_sampled(token.chosen, &token.top);
            let id = token.chosen.token;
            let is_accepted = batch.drafts(scheduled).get(n_accepted) == Some(&id);
            // A constraint is not asked after an end.
            let ends = scheduled
                .sampling
                .finish_at(id, 1 + (position - scheduled.n_prompt as usize) as u32)
                .is_some();
            if ends && rules.constraint.is_some() {
                return;
            }
            if !is_accepted {
                let slot = self.slots[Self::slot(batch.blocks(scheduled), position - 1)];
                return self.propose(rules, (seen, slot, id), place, output);
            }
        }
    }

    /// Proposes drafts: the tokens that follow `token`, with mistakes. It was chosen at `place` after `seen`,
    /// of which `slot` is the last.
    fn propose(
        &mut self,
        rules: &Rules<'_>,
        (mut seen, slot, token): (Seen, u64, TokenId),
        (position, history, so_far): (usize, &[TokenId], &[TokenId]),
        output: &mut StepOutput,
    ) {
        let Some((rng, most)) = &mut self.drafts else { return };
        let n = rng.usize(0..=*most);
        let slot = digest(slot, (position, token), rules.computed);
        seen.read(slot);
        let (history, so_far) = ([history, &[token]].concat(), [so_far, &[token]].concat());
        let drafts = self.guess(rules, (seen, slot), (position + 1, history, so_far), n);
        drafts.into_iter().for_each(|draft| output.push_draft(draft));
    }

    /// Returns up to `n` guesses of the tokens from `position` on, with mistakes. `slot` is the last that was
    /// `seen`.
    fn guess(
        &mut self,
        rules: &Rules<'_>,
        (mut seen, mut slot): (Seen, u64),
        (position, mut history, mut so_far): (usize, Vec<TokenId>, Vec<TokenId>),
        n: usize,
    ) -> Vec<TokenId> {
        let Some((rng, _)) = &mut self.drafts else { return Vec::new() };
        let mut drafts = Vec::new();
        for position in position..position + n {
            let Ok(next) = rules.choose(seen, (position, &history, &so_far)) else { break };
            let token = match rng.u32(0..8) {
                0 => rng.u32(0..=rules.vocabulary_size),
                1 => rng.u32(0..rules.vocabulary_size),
                _ => next.chosen.token,
            };
            drafts.push(token);
            slot = digest(slot, (position, token), rules.computed);
            seen.read(slot);
            history.push(token);
            so_far.push(token);
        }
        drafts
    }

    /// The drafts that the batch leaves to the executor's draft model.
    fn make_drafts(&mut self, batch: &ScheduledBatch, scheduled: &ScheduledSequence) -> Vec<TokenId> {
        let (start, n_known) = (scheduled.start as usize, scheduled.n_known());
        let mut seen = Seen::default();
        let mut slot = BEFORE_FIRST;
        for position in 0..start {
            slot = self.slots[Self::slot(batch.blocks(scheduled), position)];
            seen.read(slot);
        }
        let rules = Rules::of_sequence(scheduled, self.capacity.vocabulary_size);
        for (position, &token) in (start..).zip(batch.tokens(scheduled)) {
            slot = digest(slot, (position, token), rules.computed);
            seen.read(slot);
        }
        let place =
            (start + n_known, batch.history(scheduled, 0).to_vec(), batch.output(scheduled, 0).to_vec());
        let mut drafts = self.guess(&rules, (seen, slot), place, scheduled.n_to_draft);
        let in_vocabulary = |token: &TokenId| *token < self.capacity.vocabulary_size;
        drafts.truncate(drafts.iter().take_while(|token| in_vocabulary(token)).count());
        drafts
    }
}

impl Executor for PaperExecutor {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn n_blocks_in(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Device => self.capacity.n_blocks,
            Tier::Host => (self.host_slots.len() / BLOCK_TOKENS) as u32,
            Tier::Disk | Tier::Remote => 0,
        }
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        Some(BlockLayout {
            model: Arc::from("paper"),
            kv_type: Arc::from("digest"),
            name: Arc::from("paper-1"),
            n_bytes: BLOCK_TOKENS * size_of::<u64>(),
            n_state_parts: if self.states.is_empty() { 0 } else { 2 },
        })
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        let layout = self.idle_layout(blocks)?;
        let slots = blocks.iter().flat_map(|block| self.block_mut(BlockLocation::device(*block)).to_vec());
        Ok(ExportedBlocks { layout, bytes: slots.flat_map(u64::to_le_bytes).collect() })
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        let layout = self.idle_layout(to)?;
        exported.check(&layout, to.len())?;
        for (block, bytes) in to.iter().zip(exported.bytes.chunks_exact(layout.n_bytes)) {
            let slots = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
            self.block_mut(BlockLocation::device(*block))
                .iter_mut()
                .zip(slots)
                .for_each(|(to, slot)| *to = slot);
        }
        Ok(())
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        let layout = self.idle_layout(&[])?;
        let mut bytes = self.states.part(slot, part).to_vec();
        bytes.resize(layout.n_bytes, 0);
        Ok(bytes)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        let expected = self.idle_layout(&[])?.n_bytes;
        let wrong_size = BlockExchangeError::WrongSize { n_bytes: bytes.len(), expected };
        let half = bytes.first_chunk().filter(|_| bytes.len() == expected).ok_or(wrong_size)?;
        self.states.set_part(slot, part, *half);
        Ok(())
    }

    /// Computes the step at once; the engine gets its answer when it collects it.
    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        let has = |location: BlockLocation| location.block.0 < self.n_blocks_in(location.tier);
        if let Some(other) = batch.moves().iter().find(|other| !has(other.from) || !has(other.to)) {
            return Err(ExecutorError::UnsupportedMove(*other));
        }
        let mut output = StepOutput::default();
        self.run(batch, &mut output);
        let last = |sequence_idx| output.sampled(sequence_idx).last().map(|token| token.chosen.token);
        self.chosen = (0..output.n_sequences()).map(last).collect();
        self.in_flight.push_back(output);
        assert!(
            self.in_flight.len() <= self.capacity.max_steps_in_flight as usize,
            "too many steps in flight"
        );
        Ok(())
    }

    fn collect(&mut self, _: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        *output = self.in_flight.pop_front().expect("a step was submitted");
        Ok(())
    }
}

/// The expected output of a request, however it is scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperAnswer {
    /// The prompt's tokens except the first, if their log-probabilities are requested.
    pub prompt: Vec<PaperToken>,
    /// Each continuation's tokens and the reason of its end.
    pub sequences: Vec<(Vec<PaperToken>, FinishReason)>,
    /// Outputs of all beams of all steps of a beam search.
    pub beams: Vec<Vec<TokenId>>,
}

/// The output that `request` must get from a [`PaperExecutor`] with this vocabulary and context, computed
/// without any cache. A continuation that fails ends with [`FinishReason::Error`] after the tokens before.
pub fn paper_answer(request: &Request, capacity: &ExecutorCapacity) -> PaperAnswer {
    let (vocabulary_size, sampling) = (capacity.vocabulary_size, &*request.sampling);
    let n_blocks_tokens = capacity.n_blocks as usize * BLOCK_TOKENS;
    let limit = n_blocks_tokens.min(capacity.max_sequence_tokens as usize);
    let adapter = request.adapter.map(|adapter| adapter.id);
    let computed = Computed { adapter, media: request.media.as_deref() };
    let mut answer = PaperAnswer { prompt: Vec::new(), sequences: Vec::new(), beams: Vec::new() };
    let (mut slot, mut of_prompt) = (BEFORE_FIRST, Seen::default());
    for (i, &token) in request.prompt.iter().enumerate() {
        slot = digest(slot, (i, token), computed);
        of_prompt.read(slot);
        if let (Some(n_top), Some(&next)) = (sampling.prompt_logprobs, request.prompt.get(i + 1)) {
            answer.prompt.push(of_prompt.report(next, Some(n_top), vocabulary_size));
        }
    }
    if let Some(search) = request.beam_search() {
        let n_most = limit.saturating_sub(request.prompt.len());
        let beams = reference_beam_search(&search, sampling, n_most, |output| {
            let (mut slot, mut seen) = (slot, of_prompt);
            answer.beams.push(output.to_vec());
            for (position, &token) in (request.prompt.len()..).zip(output) {
                slot = digest(slot, (position, token), computed);
                seen.read(slot);
            }
            seen.report(0, Some(vocabulary_size), vocabulary_size).top
        });
        let none = || (Vec::new(), FinishReason::Length);
        answer.sequences = beams.into_iter().map(|beam| (beam.tokens, beam.reason)).collect();
        answer.sequences.resize_with(request.n as usize, none);
        return answer;
    }
    for index in 0..request.n {
        let constraint = request.constraint.as_deref();
        let n_prompt = request.prompt.len();
        let rules = Rules { sampling, constraint, computed, index, n_prompt, vocabulary_size };
        let (mut slot, mut seen) = (slot, of_prompt);
        let (mut history, mut chosen) = (request.prompt.to_vec(), Vec::new());
        let reason = loop {
            if sampling.max_tokens == 0 {
                break FinishReason::Length;
            }
            let Ok(token) = rules.choose(seen, (history.len(), &history, &history[n_prompt..])) else {
                break FinishReason::Error;
            };
            let id = token.chosen.token;
            chosen.push(token);
            history.push(id);
            if let Some(reason) = sampling.finish_at(id, chosen.len() as u32) {
                break reason;
            }
            if history.len() >= limit {
                break FinishReason::Length;
            }
            slot = digest(slot, (history.len() - 1, id), computed);
            seen.read(slot);
        };
        answer.sequences.push((chosen, reason));
    }
    answer
}
