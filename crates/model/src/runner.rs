//! The executor of a model: batch in, tokens and log-probabilities out. Does not know requests and scheduling; of time it reports
//! only how long choosing tokens took.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use throng_core::batch::{BLOCK_TOKENS, ScheduledBatch, ScheduledSequence, StepOutput};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::request::TokenId;
use throng_core::time::Nanos;

use crate::adapter::{AdapterStore, StepAdapters};
use crate::backend::{Backend, BackendError, BlockCopy};
use crate::batch_input::BatchInput;
use crate::batch_sampler::{BatchSampler, Wanted, begin_sequences};
use crate::config::DecoderConfig;
use crate::decoder::weights::DecoderWeights;
use crate::decoder::{Decoder, DecoderLimits};
use crate::device_sampling::choose_on_device;
use crate::eagle::FeatureTap;
use crate::kv_cache::{KvDtype, KvLayout};
use crate::state_cache::StateLayout;
use crate::token_masks::TokenMasks;

/// Most slots of recurrent state for checkpoints, beyond those of sequences that run.
const CHECKPOINT_SLOTS: usize = 16;

/// How large a runner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// KV blocks of 16 tokens.
    pub n_blocks: u32,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Most new tokens in one batch.
    pub max_batch_tokens: u32,
    /// Most rows in one batch.
    pub max_batch_sequences: u32,
    /// Most tokens of one sequence; never more than the model's context.
    pub max_sequence_tokens: Option<u32>,
}

/// Runs batches on a backend.
pub struct ModelRunner<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    cache: B::KvCache,
    answers: BatchSampler,
    masks: TokenMasks,
    adapters: Arc<AdapterStore<B>>,
    tap: Option<FeatureTap<B>>,
    step_adapters: StepAdapters<B>,
    input: BatchInput,
    wanted: Vec<Wanted>,
    /// Tokens that the device chose.
    chosen: Vec<TokenId>,
    copies: Vec<BlockCopy>,
    capacity: ExecutorCapacity,
    /// Most positions whose logits are in memory at once, `vocabulary * 4` bytes each: one for each sequence of a batch, so
    /// that a decode step reads the output matrix once. Drafts and prompts that want all their log-probabilities may need
    /// more; they are answered in pieces.
    max_logit_rows: usize,
}

impl<B: Backend> ModelRunner<B> {
    /// A runner with its KV cache and buffers.
    ///
    /// # Errors
    /// When the memory of the device does not suffice or it does not support such a cache.
    pub fn new(
        backend: B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        limits: &RunnerLimits,
    ) -> Result<Self, BackendError> {
        let layout = KvLayout::new(&config, limits.kv_dtype, limits.n_blocks as usize);
        if layout.bytes().is_none() {
            let heads: BTreeSet<_> = config.attentions().map(|attention| attention.head_dim).collect();
            let what = format!("a {} KV cache with heads of {heads:?}", limits.kv_dtype);
            return Err(BackendError::Unsupported(what));
        }
        let max_logit_rows = (limits.max_batch_sequences as usize).max(1);
        let longest = config.max_sequence_tokens as u32;
        let capacity = ExecutorCapacity {
            n_blocks: limits.n_blocks,
            max_batch_tokens: limits.max_batch_tokens,
            max_batch_sequences: limits.max_batch_sequences,
            max_sequence_tokens: limits.max_sequence_tokens.map_or(longest, |most| most.min(longest)),
            vocabulary_size: config.vocabulary_size as u32,
            n_state_slots: StateLayout::new(&config, n_state_slots(limits.max_batch_sequences)).n_slots
                as u32,
            max_steps_in_flight: 1,
        };
        let max_sequence_tokens = capacity.max_sequence_tokens as usize;
        let decoder_limits = DecoderLimits {
            max_tokens: limits.max_batch_tokens as usize,
            max_logit_rows,
            max_sequence_tokens,
            n_state_slots: capacity.n_state_slots as usize,
            n_positions: max_sequence_tokens.min(layout.n_blocks.saturating_mul(BLOCK_TOKENS)),
        };
        let decoder = Decoder::new(&backend, config, weights, &decoder_limits)?;
        let cache = backend.kv_cache(&layout)?;
        let answers = BatchSampler::new(max_logit_rows, backend.host_threads().n_threads());
        Ok(Self {
            backend,
            decoder,
            cache,
            answers,
            masks: TokenMasks::new(capacity.vocabulary_size, max_logit_rows),
            adapters: Arc::default(),
            tap: None,
            step_adapters: StepAdapters::default(),
            input: BatchInput::default(),
            wanted: Vec::new(),
            chosen: Vec::new(),
            copies: Vec::new(),
            capacity,
            max_logit_rows,
        })
    }

    /// The same runner with the adapters of `store`; a sequence that names another one fails.
    #[must_use]
    pub fn with_adapters(self, store: Arc<AdapterStore<B>>) -> Self {
        Self { adapters: store, ..self }
    }

    /// The same runner, which keeps what a head reads of its steps.
    #[must_use]
    pub(crate) fn with_tap(self, tap: FeatureTap<B>) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// Runs all layers, and keeps what a head reads, if there is one.
    fn forward(&mut self) -> Result<(), BackendError> {
        let Self { backend, cache, input, step_adapters, .. } = self;
        let Some(tap) = &mut self.tap else {
            self.decoder.forward_with(backend, cache, input, step_adapters);
            return Ok(());
        };
        tap.copy(&self.copies);
        let mut observe =
            |backend: &mut B, layer_idx, residual: &B::Buffer| tap.observe(backend, layer_idx, residual);
        self.decoder.forward_observed(backend, cache, input, step_adapters, &mut observe);
        tap.keep(backend, input)
    }

    /// Fills the step's input and the list of logits that it wants, one entry each, in the same order.
    fn prepare(&mut self, batch: &ScheduledBatch) {
        self.step_adapters.fill(batch, &self.adapters);
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
    }

    fn answer(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), BackendError> {
        for first in (0..self.wanted.len()).step_by(self.max_logit_rows) {
            let piece = first..self.wanted.len().min(first + self.max_logit_rows);
            let logits = self.decoder.logits(&mut self.backend, piece.clone());
            let (wanted, chosen) = (&self.wanted[piece], &mut self.chosen);
            let unknown = self.step_adapters.unknown();
            if choose_on_device(&mut self.backend, batch, (wanted, unknown), logits, chosen, output)? {
                continue;
            }
            let logits = self.backend.download(logits)?;
            let begun = Instant::now();
            self.answers.answer(&self.backend, batch, (&self.masks, unknown), wanted, logits, output);
            output.choosing.0 += Nanos::from(begun.elapsed()).0;
        }
        begin_sequences(self.step_adapters.unknown(), batch.sequences().len(), output);
        Ok(())
    }
}

impl<B: Backend> Executor for ModelRunner<B> {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        if batch.is_empty() {
            return Ok(());
        }
        let in_vocabulary = |token: &TokenId| *token < self.capacity.vocabulary_size;
        assert!(batch.all_tokens().iter().all(in_vocabulary), "a token outside the vocabulary");
        assert!(batch.n_tokens() <= self.capacity.max_batch_tokens as usize, "a batch beyond the capacity");
        let has_states = self.capacity.n_state_slots > 0;
        let needs_state = |scheduled: &ScheduledSequence| scheduled.state.is_some() == has_states;
        assert!(
            batch.sequences().iter().all(needs_state),
            "a recurrent state for each sequence, or for none"
        );
        self.masks.begin(batch);
        self.prepare(batch);
        self.copies.clear();
        self.copies.extend(batch.copies().iter().map(|copy| BlockCopy { from: copy.from.0, to: copy.to.0 }));
        if !self.copies.is_empty() {
            self.backend.copy_blocks(&mut self.cache, &self.copies);
        }
        if !batch.state_copies().is_empty() {
            self.decoder.copy_states(&mut self.backend, batch.state_copies());
        }
        self.forward().and_then(|()| self.answer(batch, output)).map_err(|error| match error {
            BackendError::OutOfMemory { .. } => ExecutorError::OutOfMemory(error.to_string()),
            BackendError::Unsupported(_) | BackendError::Device(_) => {
                ExecutorError::Device(error.to_string())
            }
        })
    }
}

/// Slots of recurrent state of a model that has such layers: one for each sequence of a batch, and as many for checkpoints, up to a
/// bound.
pub fn n_state_slots(max_batch_sequences: u32) -> usize {
    let n = max_batch_sequences as usize;
    n + n.min(CHECKPOINT_SLOTS)
}

/// Whether the logits after a row's new token number `token_idx` are wanted, and what for.
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
