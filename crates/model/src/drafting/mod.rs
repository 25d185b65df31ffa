//! An executor with a draft model: before the model verifies drafts, a smaller one makes them, with the same
//! sampling parameters, random numbers and constraint, so that it guesses sampled tokens too. Does not know
//! tensors; both models are executors.

mod blocks;
mod slots;

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, BlockMove, DraftPass, MemorySlot, NewSequence, ScheduledBatch, ScheduledSequence,
    StepOutput,
};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::StepShape;
use throng_core::time::Nanos;

use slots::DraftSlots;

/// Drafts of a step wait this long for the masks of all its sequences.
const MASK_PATIENCE: Duration = Duration::from_millis(2);

/// Runs batches on a model, with the drafts that another model makes.
///
/// The draft model's keys and values are in a KV cache of its own under the same block numbers, so that
/// shared prefixes, preemption and rejected drafts need no care. Tokens that it has not followed (prompts,
/// steps without drafts) are computed when drafts are requested, in chunks; until it has caught up it makes
/// none.
pub struct DraftingExecutor {
    model: Box<dyn Executor>,
    draft_model: Box<dyn Executor>,
    slots: DraftSlots,
    /// Whether entries that the draft model computed ahead stay valid for accepted drafts.
    keeps_ahead: bool,
    /// Drafts, one element for each sequence of the batch.
    drafted: Vec<Drafted>,
    /// The batch with the drafts.
    filled: ScheduledBatch,
    pass: ScheduledBatch,
    /// Sequences of the pass: an index into `drafted`, and the positions that are computed.
    members: Vec<(usize, usize, usize)>,
    pass_output: StepOutput,
    passes: Vec<DraftPass>,
    tokens: Vec<TokenId>,
    history: Vec<TokenId>,
    output: Vec<TokenId>,
}

/// The drafts of a sequence in this step.
#[derive(Debug, Default)]
struct Drafted {
    drafts: Vec<TokenId>,
    /// Maximum number of slots; lowered if no more can be created.
    n_most: usize,
    /// Sampling parameters of the draft model, without log-probabilities.
    sampling: Option<Arc<SamplingParams>>,
}

impl DraftingExecutor {
    /// The executor of `model` with drafts of `draft_model`, which has at least the same number of KV blocks
    /// and an equal vocabulary; sizes may differ by unused tokens at the end.
    pub fn new(model: Box<dyn Executor>, draft_model: Box<dyn Executor>) -> Self {
        let n_blocks = model.capacity().n_blocks.min(draft_model.capacity().n_blocks);
        Self {
            model,
            draft_model,
            slots: DraftSlots::new(n_blocks as usize),
            keeps_ahead: true,
            drafted: Vec::new(),
            filled: ScheduledBatch::default(),
            pass: ScheduledBatch::default(),
            members: Vec::new(),
            pass_output: StepOutput::default(),
            passes: Vec::new(),
            tokens: Vec::new(),
            history: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Uses a head in place of the draft model. A head reads the model's output at earlier positions, so that
    /// entries computed ahead of the model are computed again.
    #[must_use]
    pub(crate) fn of_head(self) -> Self {
        Self { keeps_ahead: false, ..self }
    }

    /// Makes the drafts of a step, one of each sequence a pass.
    fn make_drafts(&mut self, batch: &ScheduledBatch) {
        let n_sequences = batch.sequences().len();
        self.drafted.resize_with(self.drafted.len().max(n_sequences), Drafted::default);
        for (drafted, scheduled) in self.drafted.iter_mut().zip(batch.sequences()) {
            drafted.begin(scheduled);
        }
        self.leave_out_slow_masks(batch);
        self.passes.clear();
        loop {
            self.begin_pass(batch);
            if self.pass.is_empty() {
                return;
            }
            let begun = Instant::now();
            if let Err(error) = self.draft_model.execute(&self.pass, &mut self.pass_output) {
                tracing::warn!(%error, "the draft model failed: this step has the drafts that it made before");
                return;
            }
            self.note_pass(Nanos::from(begun.elapsed()));
            self.end_pass(batch);
        }
    }

    /// Makes no drafts for sequences whose masks are not ready soon: each draft needs one more.
    fn leave_out_slow_masks(&mut self, batch: &ScheduledBatch) {
        let deadline = Instant::now() + MASK_PATIENCE;
        for (drafted, scheduled) in self.drafted.iter_mut().zip(batch.sequences()) {
            let queued = scheduled.masks.as_ref().filter(|masks| drafted.n_most > 0 && masks.is_queued());
            let patience = deadline.saturating_duration_since(Instant::now());
            if queued.is_some_and(|masks| masks.wait(patience).is_none()) {
                drafted.n_most = 0;
            }
        }
    }

    /// Fills the pass with the sequences that need another draft.
    fn begin_pass(&mut self, batch: &ScheduledBatch) {
        self.pass.clear();
        self.members.clear();
        self.slots.begin_pass();
        let capacity = self.draft_model.capacity();
        let mut n_left = capacity.max_batch_tokens as usize;
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            if n_left == 0 || self.pass.sequences().len() == capacity.max_batch_sequences as usize {
                return;
            }
            let drafted = &mut self.drafted[sequence_idx];
            if drafted.drafts.len() >= drafted.n_most {
                continue;
            }
            let end = end_of_known(scheduled) + drafted.drafts.len();
            let blocks = batch.blocks(scheduled);
            // The last token is computed in any case: its logits are wanted.
            let start = self.slots.first_missing(blocks, end).min(end - 1);
            let stop = end.min(start + n_left);
            self.tokens.clear();
            self.slots.read(blocks, start, stop, &mut self.tokens);
            let is_known = |token: &TokenId| *token < capacity.vocabulary_size;
            if end >= capacity.max_sequence_tokens as usize || !self.tokens.iter().all(is_known) {
                drafted.n_most = 0;
                continue;
            }
            if !self.slots.take_for_writing(blocks, start, stop) {
                continue;
            }
            n_left -= stop - start;
            self.members.push((sequence_idx, start, stop));
            self.push(batch, scheduled, sequence_idx, start, stop < end);
        }
    }

    /// Adds a sequence to the pass, with `self.tokens` from `start` on.
    fn push(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &ScheduledSequence,
        sequence_idx: usize,
        start: usize,
        is_chunk: bool,
    ) {
        let drafted = &mut self.drafted[sequence_idx];
        let sampling = drafted.sampling.get_or_insert_with(|| without_logprobs(&scheduled.sampling));
        self.history.clear();
        if sampling.reads_history() {
            self.history.extend_from_slice(batch.history(scheduled, 0));
            self.history.extend_from_slice(&drafted.drafts);
        }
        self.output.clear();
        if scheduled.constraint.is_some() {
            self.output.extend_from_slice(batch.output(scheduled, 0));
            self.output.extend_from_slice(&drafted.drafts);
        }
        self.pass.push(NewSequence {
            id: scheduled.id,
            start: start as u32,
            n_prompt: scheduled.n_prompt,
            next_prompt_token: None,
            sample: !is_chunk,
            sampling: Arc::clone(sampling),
            constraint: scheduled.constraint.clone().filter(|_| !is_chunk),
            adapter: None,
            tokens: &self.tokens,
            drafts: &[],
            blocks: &batch.blocks(scheduled)[..(start + self.tokens.len()).div_ceil(BLOCK_TOKENS)],
            history: &self.history,
            output: &self.output,
        });
    }

    fn note_pass(&mut self, took: Nanos) {
        let shapes = self.members.iter().map(|&(_, start, stop)| StepShape::of_sequence(start, stop - start));
        let shape = shapes.fold(StepShape::default(), StepShape::plus);
        self.passes.push(DraftPass { n_tokens: shape.n_tokens, n_attended: shape.n_attended, took });
    }

    /// Takes the drafts that a pass made.
    fn end_pass(&mut self, batch: &ScheduledBatch) {
        let vocabulary_size = self.model.capacity().vocabulary_size;
        for (pass_idx, &(sequence_idx, start, stop)) in self.members.iter().enumerate() {
            let scheduled = &batch.sequences()[sequence_idx];
            let blocks = batch.blocks(scheduled);
            self.slots.follow(blocks, start, stop);
            let drafted = &mut self.drafted[sequence_idx];
            let chosen = self.pass_output.sampled(pass_idx).next().map(|token| token.chosen.token);
            let is_usable = |token: &TokenId| *token < vocabulary_size;
            match chosen.filter(is_usable).filter(|_| self.pass_output.error(pass_idx).is_none()) {
                // What a constraint forces after a token comes with it.
                Some(token) => {
                    let forced = self.pass_output.drafts(pass_idx).iter().copied().take_while(is_usable);
                    let n_before = drafted.drafts.len();
                    drafted.take(std::iter::once(token).chain(forced), scheduled);
                    self.slots.note(blocks, end_of_known(scheduled) + n_before, &drafted.drafts[n_before..]);
                }
                // It has not caught up, or no token can follow.
                None => drafted.n_most = 0,
            }
        }
    }
}

impl Drafted {
    fn begin(&mut self, scheduled: &ScheduledSequence) {
        self.drafts.clear();
        self.n_most = scheduled.n_to_draft;
        self.sampling = None;
    }

    /// Takes drafts up to the last permitted one, or one that would end the output.
    fn take(&mut self, tokens: impl Iterator<Item = TokenId>, scheduled: &ScheduledSequence) {
        let n_output = end_of_known(scheduled).saturating_sub(scheduled.n_prompt as usize);
        for token in tokens.take(self.n_most - self.drafts.len()) {
            self.drafts.push(token);
            let n_output = (n_output + self.drafts.len()) as u32;
            if scheduled.sampling.finish_at(token, n_output).is_some() {
                self.n_most = 0;
                return;
            }
        }
    }
}

impl Executor for DraftingExecutor {
    fn capacity(&self) -> ExecutorCapacity {
        let capacity = self.model.capacity();
        let n_blocks = capacity.n_blocks.min(self.draft_model.capacity().n_blocks);
        // Drafts begin with a token that the host knows.
        ExecutorCapacity { n_blocks, max_steps_in_flight: 1, ..capacity }
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        // The model refuses moves from and to other tiers.
        let within_device = batch.moves().iter().filter_map(BlockMove::device_blocks);
        within_device.for_each(|(from, to)| self.slots.copy(from, to));
        for scheduled in batch.sequences() {
            self.slots.note(batch.blocks(scheduled), scheduled.start as usize, batch.tokens(scheduled));
        }
        if batch.sequences().iter().all(|scheduled| scheduled.n_to_draft == 0) {
            return self.model.execute(batch, output);
        }
        self.make_drafts(batch);
        if !self.keeps_ahead {
            for scheduled in batch.sequences().iter().filter(|scheduled| scheduled.n_to_draft > 0) {
                self.slots.forget(batch.blocks(scheduled), end_of_known(scheduled));
            }
        }
        self.filled.clear();
        batch.moves().iter().for_each(|&block_move| self.filled.push_move(block_move));
        for (scheduled, drafted) in batch.sequences().iter().zip(&self.drafted) {
            self.filled.push_drafted(batch, scheduled, &drafted.drafts);
        }
        self.model.execute(&self.filled, output)?;
        for (sequence_idx, drafted) in self.drafted[..output.n_sequences()].iter().enumerate() {
            output.set_own_drafts(sequence_idx, &drafted.drafts);
        }
        output.draft_passes.extend_from_slice(&self.passes);
        Ok(())
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        self.exchanged_layout()
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        self.export(blocks)
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        self.import(exported, to)
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.export_part(slot, part)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        self.import_part(slot, part, bytes)
    }
}

/// The position of the first draft.
fn end_of_known(scheduled: &ScheduledSequence) -> usize {
    scheduled.start as usize + scheduled.n_known()
}

fn without_logprobs(sampling: &Arc<SamplingParams>) -> Arc<SamplingParams> {
    match (sampling.logprobs, sampling.prompt_logprobs) {
        (None, None) => Arc::clone(sampling),
        _ => Arc::new(SamplingParams { logprobs: None, prompt_logprobs: None, ..(**sampling).clone() }),
    }
}
