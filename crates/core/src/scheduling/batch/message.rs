//! A step as flat numbers that can be sent to other processes: the ranks of an executor that is divided over
//! several devices. Does not know how it is sent.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    BLOCK_TOKENS, BlockId, BlockMove, MemorySlot, NewSequence, ScheduledBatch, ScheduledEncoding,
    ScheduledSequence, SlotCopy, StateSave, StateShare, WorkShare,
};
use crate::constraint::TokenConstraint;
use crate::prompt_media::PromptMedia;
use crate::request::{AdapterId, RequestId, SamplingParams, SequenceId, TokenId};

/// A [`ScheduledBatch`] without pointers: buffers of numbers and one record a sequence. Constraints are left
/// out: a rank that chooses tokens adds them again when it reads the message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMessage {
    sequences: Vec<SequenceRecord>,
    /// Sampling parameters, each once, however many sequences have them.
    sampling: Vec<SamplingParams>,
    /// The new tokens of all sequences, one sequence after the other, as in the other buffers.
    tokens: Vec<TokenId>,
    blocks: Vec<u32>,
    history: Vec<TokenId>,
    output: Vec<TokenId>,
    /// Media of prompts, each once.
    media: Vec<PromptMedia>,
    /// Work on pictures; absent in messages without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    encodings: Vec<EncodingRecord>,
    moves: Vec<BlockMove>,
    /// Copies of states, as the numbers of the slot read and the slot written.
    state_copies: Vec<[u32; 2]>,
    has_others: bool,
}

/// One sequence, with its parts of the buffers as lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SequenceRecord {
    request: u64,
    index: u32,
    start: u32,
    n_prompt: u32,
    next_prompt_token: Option<TokenId>,
    sample: bool,
    n_drafts: u32,
    n_to_draft: u32,
    carried: Option<u32>,
    /// Index of the sampling parameters.
    sampling: u32,
    /// The number of its masks, if it has a constraint.
    masks: Option<u64>,
    adapter: Option<u32>,
    /// Index of the media of prompts.
    media: Option<u32>,
    state: Option<StateRecord>,
    n_tokens: u32,
    n_blocks: u32,
    n_history: u32,
    n_output: u32,
}

/// Work on a picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct EncodingRecord {
    request: u64,
    index: u32,
    media: PromptMedia,
    span_idx: u32,
    n_before: u32,
    share: WorkShare,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StateRecord {
    from: Option<u32>,
    to: u32,
    /// Number of tokens, and the slot, of each saved state.
    saves: [Option<[u32; 2]>; 2],
}

/// A message that does not describe a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message of a step describes no batch: {0}")]
pub struct MalformedStep(&'static str);

/// The constraint of a sequence of a message.
pub type ConstraintOf<'a> = dyn Fn(SequenceId) -> Option<Arc<dyn TokenConstraint>> + 'a;

impl StepMessage {
    /// Fills the message from a batch, reusing the buffers.
    pub fn fill(&mut self, batch: &ScheduledBatch) {
        self.clear();
        self.has_others = batch.has_others();
        self.moves.extend_from_slice(batch.moves());
        self.state_copies.extend(batch.state_copies().iter().map(|copy| [copy.from.0, copy.to.0]));
        self.encodings.extend(batch.encodings().iter().map(|encoding| EncodingRecord {
            request: encoding.id.request.0,
            index: encoding.id.index,
            media: (*encoding.media).clone(),
            span_idx: encoding.span_idx as u32,
            n_before: encoding.n_before,
            share: encoding.share,
        }));
        let mut latest: Option<&Arc<SamplingParams>> = None;
        let mut latest_media: Option<&Arc<PromptMedia>> = None;
        for scheduled in batch.sequences() {
            // Sequences of one request follow each other mostly.
            if latest.is_none_or(|latest| !Arc::ptr_eq(latest, &scheduled.sampling)) {
                self.sampling.push((*scheduled.sampling).clone());
                latest = Some(&scheduled.sampling);
            }
            if let Some(media) = &scheduled.media
                && latest_media.is_none_or(|latest| !Arc::ptr_eq(latest, media))
            {
                self.media.push((**media).clone());
                latest_media = Some(media);
            }
            self.push(batch, scheduled);
        }
    }

    /// Removes the data that only token selection reads: the histories of sequences.
    pub fn forget_histories(&mut self) {
        self.history.clear();
        self.output.clear();
        for record in &mut self.sequences {
            (record.n_history, record.n_output) = (0, 0);
        }
    }

    fn push(&mut self, batch: &ScheduledBatch, scheduled: &ScheduledSequence) {
        let (tokens, blocks) = (batch.tokens(scheduled), batch.blocks(scheduled));
        let (history, output) = (batch.history(scheduled, 0), batch.output(scheduled, 0));
        self.tokens.extend_from_slice(tokens);
        self.blocks.extend(blocks.iter().map(|block| block.0));
        self.history.extend_from_slice(history);
        self.output.extend_from_slice(output);
        let save = |save: StateSave| [save.n_tokens, save.slot.0];
        self.sequences.push(SequenceRecord {
            request: scheduled.id.request.0,
            index: scheduled.id.index,
            start: scheduled.start,
            n_prompt: scheduled.n_prompt,
            next_prompt_token: scheduled.next_prompt_token,
            sample: scheduled.sample,
            n_drafts: scheduled.n_drafts as u32,
            n_to_draft: scheduled.n_to_draft as u32,
            carried: scheduled.carried.map(|sequence_idx| sequence_idx as u32),
            sampling: self.sampling.len() as u32 - 1,
            masks: scheduled.masks.as_ref().map(|masks| masks.number()),
            adapter: scheduled.adapter.map(|adapter| adapter.0),
            media: scheduled.media.as_ref().map(|_| self.media.len() as u32 - 1),
            state: scheduled.state.map(|state| StateRecord {
                from: state.from.map(|slot| slot.0),
                to: state.to.0,
                saves: state.saves.map(|saved| saved.map(save)),
            }),
            n_tokens: tokens.len() as u32,
            n_blocks: blocks.len() as u32,
            n_history: history.len() as u32,
            n_output: output.len() as u32,
        });
    }

    /// Fills `batch` from the message, with the constraints that `constraint_of` returns: none if the
    /// reader chooses no tokens.
    ///
    /// # Errors
    /// When the message describes no batch; `batch` is then unspecified.
    pub fn read(
        &self,
        batch: &mut ScheduledBatch,
        constraint_of: &ConstraintOf<'_>,
    ) -> Result<(), MalformedStep> {
        batch.clear();
        batch.set_has_others(self.has_others);
        self.moves.iter().for_each(|&block_move| batch.push_move(block_move));
        for &[from, to] in &self.state_copies {
            batch.push_state_copy(SlotCopy { from: MemorySlot(from), to: MemorySlot(to) });
        }
        for record in &self.encodings {
            batch.push_encoding(record.read()?);
        }
        let sampling: Vec<_> = self.sampling.iter().map(|params| Arc::new(params.clone())).collect();
        let media: Vec<_> = self.media.iter().map(|media| Arc::new(media.clone())).collect();
        let blocks: Vec<_> = self.blocks.iter().copied().map(BlockId).collect();
        let (mut tokens, mut blocks) = (&self.tokens[..], &blocks[..]);
        let (mut history, mut output) = (&self.history[..], &self.output[..]);
        for record in &self.sequences {
            record.check()?;
            let new_tokens = take(&mut tokens, record.n_tokens)?;
            let (known, drafts) = new_tokens.split_at(new_tokens.len() - record.n_drafts as usize);
            let id = SequenceId { request: RequestId(record.request), index: record.index };
            let params = sampling.get(record.sampling as usize);
            batch.push(NewSequence {
                id,
                start: record.start,
                n_prompt: record.n_prompt,
                next_prompt_token: record.next_prompt_token,
                sample: record.sample,
                sampling: params.cloned().ok_or(MalformedStep("sampling parameters are missing"))?,
                constraint: record.masks.and_then(|_| constraint_of(id)),
                adapter: record.adapter.map(AdapterId),
                tokens: known,
                drafts,
                blocks: take(&mut blocks, record.n_blocks)?,
                history: take(&mut history, record.n_history)?,
                output: take(&mut output, record.n_output)?,
            });
            record.finish(batch);
            if let Some(idx) = record.media {
                let media = media.get(idx as usize).ok_or(MalformedStep("media are missing"))?;
                if !media.fits(record.n_prompt as usize) {
                    return Err(MalformedStep("media of another prompt"));
                }
                batch.set_media(Arc::clone(media), None);
            }
        }
        let is_read = tokens.is_empty() && blocks.is_empty() && history.is_empty() && output.is_empty();
        if is_read { Ok(()) } else { Err(MalformedStep("numbers of no sequence")) }
    }

    fn clear(&mut self) {
        let Self { sequences, sampling, media, tokens, blocks, history, output, moves, state_copies, .. } =
            self;
        sequences.clear();
        sampling.clear();
        [tokens, blocks, history, output].into_iter().for_each(Vec::clear);
        moves.clear();
        media.clear();
        state_copies.clear();
        self.encodings.clear();
        self.has_others = false;
    }
}

impl EncodingRecord {
    fn read(&self) -> Result<ScheduledEncoding, MalformedStep> {
        if self.span_idx as usize >= self.media.spans.len() || self.share.all == 0 {
            return Err(MalformedStep("work on no picture"));
        }
        Ok(ScheduledEncoding {
            id: SequenceId { request: RequestId(self.request), index: self.index },
            media: Arc::new(self.media.clone()),
            media_scope: None,
            span_idx: self.span_idx as usize,
            n_before: self.n_before,
            share: self.share,
        })
    }
}

impl SequenceRecord {
    /// Checks the message for the conditions that a batch asserts of its sequences.
    fn check(&self) -> Result<(), MalformedStep> {
        let n_computed = u64::from(self.start) + u64::from(self.n_tokens) + u64::from(self.n_to_draft);
        let n_expected = u64::from(self.n_drafts) + u64::from(self.n_to_draft);
        let has_token = self.n_tokens > self.n_drafts;
        let has_blocks = u64::from(self.n_blocks) * BLOCK_TOKENS as u64 >= n_computed;
        let has_drafts = n_expected == 0 || (self.sample && (self.n_drafts == 0 || self.n_to_draft == 0));
        let saves = self.state.iter().flat_map(|state| state.saves.into_iter().flatten());
        let has_saves = saves.into_iter().all(|[n_tokens, _]| (1..=self.n_tokens).contains(&n_tokens));
        let has_state = self.state.is_none() || (self.n_drafts == 0 && has_saves);
        let is_alone = self.n_tokens == 1 && self.masks.is_none() && self.n_history == 0;
        let checks = [
            (has_token, "a sequence without a new token"),
            (has_blocks, "a sequence without blocks for its positions"),
            (has_drafts, "drafts that nothing is compared with"),
            (has_state, "a state of other tokens"),
            (self.carried.is_none() || is_alone, "a carried token that is needed on the host"),
        ];
        match checks.into_iter().find(|&(holds, _)| !holds) {
            Some((_, problem)) => Err(MalformedStep(problem)),
            None => Ok(()),
        }
    }

    /// Sets the fields beside the slices of the sequence that was added last.
    fn finish(&self, batch: &mut ScheduledBatch) {
        if self.n_to_draft > 0 {
            batch.ask_for_drafts(self.n_to_draft as usize);
        }
        self.masks.into_iter().for_each(|number| batch.number_masks(number));
        if let Some(StateRecord { from, to, saves }) = &self.state {
            let save = |[n_tokens, slot]: [u32; 2]| StateSave { n_tokens, slot: MemorySlot(slot) };
            batch.set_state(StateShare {
                from: from.map(MemorySlot),
                to: MemorySlot(*to),
                saves: saves.map(|saved| saved.map(save)),
            });
        }
        self.carried.into_iter().for_each(|sequence_idx| batch.carry_token(sequence_idx as usize));
    }
}

/// The next `n` numbers of a buffer.
fn take<'a, T>(buffer: &mut &'a [T], n: u32) -> Result<&'a [T], MalformedStep> {
    buffer.split_off(..n as usize).ok_or(MalformedStep("a buffer is too short"))
}
