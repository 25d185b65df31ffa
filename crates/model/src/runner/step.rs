//! State of a step that a runner keeps until it is collected: its input, its wanted logits, its adapters.
//! Does not know the forward pass.

use std::time::Instant;

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{MediaCounts, ScheduledBatch, ScheduledSequence, SlotCopy};
use throng_core::scheduling::executor::ExecutorError;

use crate::adapter::{AdapterStore, StepAdapters};
use crate::backend::{Backend, BlockCopy, Ticket};
use crate::batch_input::{BatchInput, CarriedToken};
use crate::batch_sampler::{Failed, Wanted};

/// A step that was submitted. Buffers are used again for later steps.
pub(super) struct RunnerStep<B: Backend> {
    pub(super) input: BatchInput,
    /// Purposes of the wanted logits, in the order of `input.logit_tokens`.
    pub(super) wanted: Vec<Wanted>,
    /// Rows that the device answers, once their logits were begun.
    pub(super) on_device: Vec<bool>,
    pub(super) adapters: StepAdapters<B>,
    /// Sequences whose pictures are missing or unreadable.
    pub(super) unreadable: Vec<usize>,
    pub(super) media: MediaCounts,
    /// Time at which its forward pass began.
    pub(super) begun: Instant,
    pub(super) copies: Vec<BlockCopy>,
    pub(super) state_copies: Vec<SlotCopy>,
    /// Indices of carried tokens, with those of the sequences in the step before that choose them.
    carried: Vec<(usize, usize)>,
    pub(super) progress: Progress,
}

/// Progress of the device with a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Progress {
    /// The device has not begun the step.
    Prepared,
    /// The forward pass was begun, its logits were not.
    Forward,
    /// All wanted logits were begun; the host answers those rows that the device does not.
    Logits(Option<Ticket>),
    /// The device answers all rows.
    Sampled(Ticket),
}

impl<B: Backend> RunnerStep<B> {
    pub(super) fn new() -> Self {
        Self {
            input: BatchInput::default(),
            wanted: Vec::new(),
            on_device: Vec::new(),
            adapters: StepAdapters::default(),
            unreadable: Vec::new(),
            media: MediaCounts::default(),
            begun: Instant::now(),
            copies: Vec::new(),
            state_copies: Vec::new(),
            carried: Vec::new(),
            progress: Progress::Prepared,
        }
    }

    /// Fills the input from a batch, except the carried tokens.
    ///
    /// # Errors
    /// When the batch moves blocks from or to another tier than the device.
    pub(super) fn prepare(
        &mut self,
        batch: &ScheduledBatch,
        adapters: &AdapterStore<B>,
    ) -> Result<(), ExecutorError> {
        self.progress = Progress::Prepared;
        self.adapters.fill(batch, adapters);
        self.unreadable.clear();
        self.media = MediaCounts::default();
        self.wanted.clear();
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            let tokens = batch.tokens(scheduled);
            let want = |token_idx| wanted_of(sequence_idx, scheduled, tokens, token_idx);
            self.wanted.extend((0..tokens.len()).filter_map(want));
        }
        self.input.fill(batch, |sequence_idx, token_idx| {
            let scheduled = &batch.sequences()[sequence_idx];
            wanted_of(sequence_idx, scheduled, batch.tokens(scheduled), token_idx).is_some()
        });
        self.state_copies.clear();
        self.state_copies.extend_from_slice(batch.state_copies());
        self.carried.clear();
        let carried =
            |scheduled: &ScheduledSequence| Some((scheduled.token_range().start, scheduled.carried?));
        self.carried.extend(batch.sequences().iter().filter_map(carried));
        self.copies.clear();
        for block_move in batch.moves() {
            let (from, to) = block_move.device_blocks().ok_or(ExecutorError::UnsupportedMove(*block_move))?;
            self.copies.push(BlockCopy { from: from.0, to: to.0 });
        }
        Ok(())
    }

    /// Sequences that fail with any logits.
    pub(super) fn failed(&self) -> Failed<'_> {
        Failed { unknown_adapter: self.adapters.unknown(), unreadable_media: &self.unreadable }
    }

    /// Sets the source of the carried tokens: they are on the device if the step `before` is in flight, else
    /// `collected`, one for each of its sequences.
    pub(super) fn carry_tokens(&mut self, before: Option<&Self>, collected: &[TokenId]) {
        for &(token_idx, sequence_idx) in &self.carried {
            let Some(before) = before else {
                self.input.tokens[token_idx] = collected.get(sequence_idx).copied().unwrap_or(0);
                continue;
            };
            // A sequence whose token is carried has one logit row, the last that is not of a later sequence.
            let n_up_to = before.wanted.partition_point(|wanted| wanted.sequence_idx <= sequence_idx);
            let (token_idx, chosen_idx) = (token_idx as u32, n_up_to.saturating_sub(1) as u32);
            self.input.carried.push(CarriedToken { token_idx, chosen_idx });
        }
    }
}

/// The use of the logits after a sequence's new token number `token_idx`; `None` if they are not needed.
fn wanted_of(
    sequence_idx: usize,
    scheduled: &ScheduledSequence,
    tokens: &[TokenId],
    token_idx: usize,
) -> Option<Wanted> {
    let is_last = token_idx + 1 == tokens.len();
    let position = scheduled.start as usize + token_idx;
    if scheduled.sampling.prompt_logprobs.is_some() && position + 1 < scheduled.n_prompt as usize {
        let next = if is_last { scheduled.next_prompt_token } else { Some(tokens[token_idx + 1]) };
        return next.map(|token| Wanted { sequence_idx, next_prompt_token: Some(token), n_drafts_before: 0 });
    }
    let n_drafts_before = (token_idx + 1).checked_sub(scheduled.n_known()).filter(|_| scheduled.sample)?;
    Some(Wanted { sequence_idx, next_prompt_token: None, n_drafts_before })
}
