//! One step in flight: the batch that the scheduler hands to an executor. Flat buffers are reused from step
//! to step, so that a steady state allocates nothing. Does not schedule or execute.

mod block_move;
mod encoding;
mod message;
mod plain;
mod state;
mod stored;

use std::ops::Range;
use std::sync::Arc;

use crate::constraint::TokenConstraint;
use crate::prompt_media::{PromptMedia, RotaryPosition};
use crate::request::{AdapterId, SamplingParams, SequenceId, TokenId};
pub use crate::scheduling::block::{BLOCK_TOKENS, BlockId};
use crate::scheduling::block_hash::BlockHash;
use crate::scheduling::masks::SequenceMasks;
pub use crate::scheduling::step_output::{
    ChosenToken, DraftPass, MediaCounts, SequenceError, StepOutput, TokenLogprob,
};
pub use block_move::{BlockLocation, BlockMove, Tier};
pub use encoding::{ScheduledEncoding, WorkShare};
pub use message::{ConstraintOf, MalformedStep, StepMessage};
pub use plain::PlainShare;
pub use state::{MemorySlot, SlotCopy, StateSave, StateShare};
pub use stored::{BlockExport, BlockLoad, BlockSave, ExportId, StoreSlot, StoredPlace};

/// One step's work over several sequences.
///
/// A sequence's new tokens are at positions `start..start + n`; the executor writes their keys and values
/// into the sequence's blocks and lets each attend to every position up to its own. Position `p` is in slot
/// `p % 16` of the sequence's block `p / 16`. A sequence may appear once a step.
///
/// The last `n_drafts` new tokens of a sequence are drafts: guesses of its next output tokens. The executor
/// chooses a token after the last token before them and after each of them, each with the history, constraint
/// and random numbers of its own position. It answers with the chosen tokens up to the first that differs
/// from the draft in its place, or all `n_drafts + 1`. A token at a position before an accepted draft does
/// not depend on the drafts after it, so the answer is what as many steps without drafts would have given.
///
/// An executor with a draft model may make the drafts itself, up to `n_to_draft` for a sequence. It then
/// treats them as drafts of the batch and reports them in its output ([`StepOutput::set_own_drafts`]).
///
/// If the model has recurrent layers, each sequence names the slots of state that it reads and writes
/// ([`StateShare`]), and has no drafts.
#[derive(Debug, Default)]
pub struct ScheduledBatch {
    sequences: Vec<ScheduledSequence>,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    history: Vec<TokenId>,
    output: Vec<TokenId>,
    saves: Vec<BlockSave>,
    loads: Vec<BlockLoad>,
    exports: Vec<BlockExport>,
    moves: Vec<BlockMove>,
    state_copies: Vec<SlotCopy>,
    encodings: Vec<ScheduledEncoding>,
    plain: Vec<PlainShare>,
    has_others: bool,
}

/// One sequence's share of a step.
#[derive(Debug, Clone)]
pub struct ScheduledSequence {
    /// Id of the sequence.
    pub id: SequenceId,
    /// Position of the first new token.
    pub start: u32,
    /// Length of the request's prompt in tokens.
    pub n_prompt: u32,
    /// The token after the last new one, if it is part of the prompt (for prompt log-probabilities).
    pub next_prompt_token: Option<TokenId>,
    /// Whether output tokens are chosen, the first of them at position `start + n_tokens - n_drafts`.
    pub sample: bool,
    /// Number of new tokens, at their end, that are drafts; 0 unless `sample`.
    pub n_drafts: usize,
    /// Number of drafts that the executor may make and add after the new tokens, for which the blocks have
    /// room; 0 where `n_drafts` is not.
    pub n_to_draft: usize,
    /// Index of the sequence, in the step submitted before this one, whose chosen token is this sequence's
    /// one new token, if that step has not been collected yet. The token in its place in the batch is not
    /// read. If that sequence gets no token, the answer for this one is not read either.
    pub carried: Option<usize>,
    /// Sampling parameters.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the output tokens, if any.
    pub constraint: Option<Arc<dyn TokenConstraint>>,
    /// Masks of the constraint after its output and after each draft; `None` without a constraint.
    pub masks: Option<Arc<SequenceMasks>>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<AdapterId>,
    /// Parts of the prompt that are not tokens; `None` for text only.
    pub media: Option<Arc<PromptMedia>>,
    /// Root of the names of the sequence's blocks. Only sequences that may share cached results have the same
    /// root; `None` if it is not known.
    pub media_scope: Option<BlockHash>,
    /// Use of the recurrent state by the step; `None` if the model has no recurrent layers.
    pub state: Option<StateShare>,
    tokens: Range<usize>,
    blocks: Range<usize>,
    history: Range<usize>,
    output: Range<usize>,
}

/// Argument of [`ScheduledBatch::push`]: one sequence with its slices.
#[derive(Debug)]
pub struct NewSequence<'a> {
    /// Id of the sequence.
    pub id: SequenceId,
    /// Position of the first new token.
    pub start: u32,
    /// Length of the request's prompt in tokens.
    pub n_prompt: u32,
    /// The token after the last new one, if it is part of the prompt.
    pub next_prompt_token: Option<TokenId>,
    /// Whether output tokens are chosen after the last of `tokens` and after each draft.
    pub sample: bool,
    /// Sampling parameters.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the output tokens, if any.
    pub constraint: Option<Arc<dyn TokenConstraint>>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<AdapterId>,
    /// The known new tokens, at least one.
    pub tokens: &'a [TokenId],
    /// Guesses of the tokens after them; only where `sample`.
    pub drafts: &'a [TokenId],
    /// Blocks of positions `0..start + tokens.len() + drafts.len()`, in order.
    pub blocks: &'a [BlockId],
    /// Prompt and output so far, `tokens` included, when sampling reads them; else empty.
    pub history: &'a [TokenId],
    /// Output so far, `tokens` included, when there is a constraint; else empty.
    pub output: &'a [TokenId],
}

impl ScheduledBatch {
    /// Empties the batch and keeps its buffers.
    pub fn clear(&mut self) {
        self.sequences.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
        self.output.clear();
        self.saves.clear();
        self.loads.clear();
        self.exports.clear();
        self.moves.clear();
        self.state_copies.clear();
        self.encodings.clear();
        self.plain.clear();
        self.has_others = false;
    }

    /// Sets whether the step has sequences of several tenants, or without constraints.
    pub fn set_has_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    /// Whether waiting for the masks of one sequence holds up others than sequences of the same tenant that
    /// need masks themselves.
    pub fn has_others(&self) -> bool {
        self.has_others
    }

    /// Adds a copy of a recurrent state, which is made before the step's computation.
    pub fn push_state_copy(&mut self, copy: SlotCopy) {
        self.state_copies.push(copy);
    }

    /// The recurrent states to copy before the step, in this order.
    pub fn state_copies(&self) -> &[SlotCopy] {
        &self.state_copies
    }

    /// Adds work on a picture, which is done before all tokens of the step. A step may have nothing else.
    pub fn push_encoding(&mut self, encoding: ScheduledEncoding) {
        self.encodings.push(encoding);
    }

    /// Work on pictures in this step.
    pub fn encodings(&self) -> &[ScheduledEncoding] {
        &self.encodings
    }

    /// Adds a block to save, which is read before any load and move overwrites it.
    pub fn push_save(&mut self, save: BlockSave) {
        self.saves.push(save);
    }

    /// The blocks to save to the store, first of all.
    pub fn saves(&self) -> &[BlockSave] {
        &self.saves
    }

    /// Adds a block to load, which is loaded after all saves and the loads added before it.
    pub fn push_load(&mut self, load: BlockLoad) {
        self.loads.push(load);
    }

    /// The blocks to load from the store, before moves and all that the step computes.
    pub fn loads(&self) -> &[BlockLoad] {
        &self.loads
    }

    /// Adds a block to export, which is read after all loads and before any move overwrites it.
    pub fn push_export(&mut self, export: BlockExport) {
        self.exports.push(export);
    }

    /// The blocks to give to other engines, after the loads and before moves.
    pub fn exports(&self) -> &[BlockExport] {
        &self.exports
    }

    /// Adds a move of a block, which comes after those before it and before all that the step computes.
    pub fn push_move(&mut self, block_move: BlockMove) {
        self.moves.push(block_move);
    }

    /// The blocks to move before the step, in this order.
    pub fn moves(&self) -> &[BlockMove] {
        &self.moves
    }

    /// Adds a sequence.
    ///
    /// # Panics
    /// When the sequence has no new token, fewer blocks than its positions need, or drafts without sampling.
    pub fn push(&mut self, new: NewSequence<'_>) {
        let end = new.start as usize + new.tokens.len() + new.drafts.len();
        assert!(!new.tokens.is_empty(), "a sequence without a new token");
        assert!(new.blocks.len() * BLOCK_TOKENS >= end, "a sequence without blocks for its positions");
        assert!(new.sample || new.drafts.is_empty(), "drafts that nothing is compared with");
        let (history_drafts, output_drafts): (&[TokenId], &[TokenId]) = (
            if new.history.is_empty() { &[] } else { new.drafts },
            if new.constraint.is_none() { &[] } else { new.drafts },
        );
        let output = append_both(&mut self.output, new.output, output_drafts);
        let masks = new.constraint.as_ref().map(|constraint| {
            let (constraint, sampling) = (Arc::clone(constraint), Arc::clone(&new.sampling));
            let output = self.output[output.clone()].to_vec();
            Arc::new(SequenceMasks::new(new.id, constraint, sampling, output, new.drafts.len()))
        });
        self.sequences.push(ScheduledSequence {
            id: new.id,
            start: new.start,
            n_prompt: new.n_prompt,
            next_prompt_token: new.next_prompt_token,
            sample: new.sample,
            n_drafts: new.drafts.len(),
            n_to_draft: 0,
            carried: None,
            sampling: new.sampling,
            constraint: new.constraint,
            masks,
            adapter: new.adapter,
            media: None,
            media_scope: None,
            state: None,
            tokens: append_both(&mut self.tokens, new.tokens, new.drafts),
            blocks: append_both(&mut self.blocks, new.blocks, &[]),
            history: append_both(&mut self.history, new.history, history_drafts),
            output,
        });
    }

    /// Gives a number to the masks of the sequence that was added last.
    pub fn number_masks(&mut self, number: u64) {
        let masks = self.sequences.last_mut().and_then(|sequence| sequence.masks.as_mut());
        if let Some(masks) = masks.and_then(Arc::get_mut) {
            masks.set_number(number);
        }
    }

    /// Replaces the masks of the sequence that was added last by earlier evaluated ones.
    ///
    /// # Panics
    /// When the masks do not belong to the sequence's output and drafts.
    pub fn set_masks(&mut self, masks: Arc<SequenceMasks>) {
        let sequence = self.sequences.last_mut().expect("a sequence was added");
        let n_output = sequence.output.len() - sequence.n_drafts;
        let drafts = &self.tokens[sequence.tokens.end - sequence.n_drafts..sequence.tokens.end];
        assert!(sequence.constraint.is_some() && masks.fit(n_output, drafts), "masks of another output");
        sequence.masks = Some(masks);
    }

    /// Requests up to `n` drafts from the executor for the sequence that was added last.
    ///
    /// # Panics
    /// When the sequence does not sample, has drafts, or has no blocks for `n` more positions.
    pub fn ask_for_drafts(&mut self, n: usize) {
        let sequence = self.sequences.last_mut().expect("a sequence was added");
        let end = sequence.start as usize + sequence.tokens.len() + n;
        assert!(sequence.sample && sequence.n_drafts == 0, "drafts that nothing is compared with");
        assert!(sequence.blocks.len() * BLOCK_TOKENS >= end, "drafts without blocks for their positions");
        sequence.n_to_draft = n;
    }

    /// Sets the use of the recurrent state of the sequence that was added last.
    ///
    /// # Panics
    /// When the sequence has drafts, or does not have the tokens after which the state is to be kept.
    pub fn set_state(&mut self, state: StateShare) {
        let sequence = self.sequences.last_mut().expect("a sequence was added");
        assert_eq!(sequence.n_drafts, 0, "the state after a rejected draft would be lost");
        let is_within = |save: StateSave| (1..=sequence.tokens.len()).contains(&(save.n_tokens as usize));
        assert!(state.saves.into_iter().flatten().all(is_within), "a state of other tokens");
        sequence.state = Some(state);
    }

    /// Sets the media in the prompt of the sequence that was added last, which must match, and the root of
    /// the names of its blocks.
    pub fn set_media(&mut self, media: Arc<PromptMedia>, scope: Option<BlockHash>) {
        let sequence = self.sequences.last_mut().expect("a sequence was added");
        (sequence.media, sequence.media_scope) = (Some(media), scope);
    }

    /// Leaves the one new token of the sequence that was added last to the executor: it is the token chosen
    /// for sequence `sequence_idx` of the batch submitted before this one.
    ///
    /// # Panics
    /// When the sequence has several new tokens, or another field depends on the token.
    pub fn carry_token(&mut self, sequence_idx: usize) {
        let sequence = self.sequences.last_mut().expect("a sequence was added");
        let is_alone = sequence.tokens.len() == 1 && sequence.constraint.is_none();
        assert!(is_alone && sequence.history.is_empty(), "the token is needed on the host");
        sequence.carried = Some(sequence_idx);
    }

    /// Adds a sequence of another batch, with `drafts` if the executor made any, otherwise with its own.
    pub fn push_drafted(&mut self, batch: &Self, scheduled: &ScheduledSequence, drafts: &[TokenId]) {
        self.push(NewSequence {
            id: scheduled.id,
            start: scheduled.start,
            n_prompt: scheduled.n_prompt,
            next_prompt_token: scheduled.next_prompt_token,
            sample: scheduled.sample,
            sampling: Arc::clone(&scheduled.sampling),
            constraint: scheduled.constraint.clone(),
            adapter: scheduled.adapter,
            tokens: &batch.tokens(scheduled)[..scheduled.n_known()],
            drafts: if drafts.is_empty() { batch.drafts(scheduled) } else { drafts },
            blocks: batch.blocks(scheduled),
            history: batch.history(scheduled, 0),
            output: batch.output(scheduled, 0),
        });
        if let Some(masks) = scheduled.masks.as_ref().filter(|_| drafts.is_empty()) {
            self.set_masks(Arc::clone(masks));
        }
        scheduled.state.into_iter().for_each(|state| self.set_state(state));
        scheduled.media.iter().for_each(|media| self.set_media(Arc::clone(media), scheduled.media_scope));
        if let Some(sequence_idx) = scheduled.carried {
            self.carry_token(sequence_idx);
        }
    }

    /// The sequences, in the order in which the output answers them.
    pub fn sequences(&self) -> &[ScheduledSequence] {
        &self.sequences
    }

    /// The new tokens of all sequences, drafts included, one sequence after the other.
    pub fn all_tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The new tokens of a sequence of this batch: the known ones, then the drafts.
    pub fn tokens(&self, sequence: &ScheduledSequence) -> &[TokenId] {
        &self.tokens[sequence.tokens.clone()]
    }

    /// The drafts of a sequence of this batch.
    pub fn drafts(&self, sequence: &ScheduledSequence) -> &[TokenId] {
        &self.tokens[sequence.tokens.end - sequence.n_drafts..sequence.tokens.end]
    }

    /// The block table of a sequence of this batch.
    pub fn blocks(&self, sequence: &ScheduledSequence) -> &[BlockId] {
        &self.blocks[sequence.blocks.clone()]
    }

    /// Tokens that stand before the token to choose after the sequence's first `n_accepted` drafts: prompt,
    /// output so far and those drafts, when the sequence's sampling reads them; else empty.
    pub fn history(&self, sequence: &ScheduledSequence, n_accepted: usize) -> &[TokenId] {
        let history = &self.history[sequence.history.clone()];
        &history[..history.len().saturating_sub(sequence.n_drafts - n_accepted)]
    }

    /// The output before the token to choose after the sequence's first `n_accepted` drafts, when the
    /// sequence has a constraint; else empty.
    pub fn output(&self, sequence: &ScheduledSequence, n_accepted: usize) -> &[TokenId] {
        let output = &self.output[sequence.output.clone()];
        &output[..output.len().saturating_sub(sequence.n_drafts - n_accepted)]
    }

    /// Number of new tokens over all sequences, drafts included.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the batch has no sequences.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }
}

impl ScheduledSequence {
    /// Whether an executor may answer it with [`StepOutput::leave_out_sequence`] because its masks are not
    /// there. A recurrent state cannot go back before the sequence's last token.
    pub fn may_be_left_out(&self) -> bool {
        self.sample && self.constraint.is_some() && self.state.is_none()
    }

    /// Number of new tokens of the sequence, drafts included.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Number of known new tokens.
    pub fn n_known(&self) -> usize {
        self.tokens.len() - self.n_drafts
    }

    /// The rotary position of the token at `position`: the same in all sections, unless the request has
    /// others.
    pub fn rotary_position(&self, position: u32) -> RotaryPosition {
        let text = RotaryPosition::of_text(position);
        self.media.as_ref().map_or(text, |media| media.rotary_position(position))
    }

    /// The sequence's new tokens as a range of [`ScheduledBatch::all_tokens`].
    pub fn token_range(&self) -> Range<usize> {
        self.tokens.clone()
    }
}

/// Appends both slices and returns the range of each.
fn append_both<T: Copy>(buffer: &mut Vec<T>, first: &[T], second: &[T]) -> Range<usize> {
    let start = buffer.len();
    buffer.extend_from_slice(first);
    buffer.extend_from_slice(second);
    start..buffer.len()
}
