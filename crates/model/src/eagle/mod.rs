//! EAGLE-3 heads (arXiv:2503.01840): drafts from one layer that reads tokens and the model's hidden states. A
//! head is an executor in the place of a draft model; the model's runner keeps the hidden states for it
//! ([`FeatureTap`]). Does not know how drafts are verified.

mod config;
mod features;
mod forward;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use throng_core::scheduling::batch::{BLOCK_TOKENS, ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use crate::backend::{Backend, BackendError};
use crate::batch_input::BatchInput;
use crate::batch_sampler::{BatchSampler, Failed, Wanted, WantedRows, begin_sequences};
use crate::decoder::DecoderLimits;
use crate::decoder::weights::DecoderWeights;
use crate::kv_cache::{KvDtype, KvLayout};

pub(crate) use config::HeadConfig;
use features::lock;
pub(crate) use features::{FeatureTap, Features, SharedFeatures};
use forward::Head;
pub(crate) use weights::HeadWeights;

/// Runs batches on a head: of each sequence that samples, a guess of the token after its last one.
///
/// A token's entry in the head's cache is made of the token and of the features at the position before it:
/// the model's or, ahead of the model, the head's own. So the head cannot follow further than one token after
/// the model's last position, and entries that it computes ahead have to be computed again.
pub(crate) struct HeadRunner<B: Backend> {
    backend: B,
    head: Head<B>,
    cache: B::KvCache,
    shared: SharedFeatures,
    answers: BatchSampler,
    /// Size of the model's vocabulary.
    vocabulary_size: usize,
    input: BatchInput,
    wanted: Vec<Wanted>,
    /// A row for each token of the step.
    features: Vec<f32>,
    /// Logits, `[wanted, vocabulary]` of the model; tokens that the head cannot propose have no chance.
    logits: Vec<f32>,
    capacity: ExecutorCapacity,
}

impl<B: Backend> HeadRunner<B> {
    /// The executor of a head of a model whose executor can hold `of_model`.
    ///
    /// # Errors
    /// When the memory of the device does not suffice or it does not support such a cache.
    pub(crate) fn new(
        backend: B,
        config: Arc<HeadConfig>,
        weights: Arc<HeadWeights<B>>,
        model: Arc<DecoderWeights<B>>,
        of_model: ExecutorCapacity,
        kv_dtype: KvDtype,
        shared: SharedFeatures,
    ) -> Result<Self, BackendError> {
        let decoder = &config.decoder;
        let layout = KvLayout::new(decoder, kv_dtype, of_model.n_blocks as usize);
        if layout.bytes().is_none() {
            let what = format!("a {kv_dtype} KV cache with heads of {}", config.attention.head_dim);
            return Err(BackendError::Unsupported(what));
        }
        let known = weights.embedding.as_ref().map_or(u32::MAX, |_| decoder.vocabulary_size as u32);
        let capacity = ExecutorCapacity {
            max_sequence_tokens: of_model.max_sequence_tokens.min(decoder.max_sequence_tokens as u32),
            vocabulary_size: of_model.vocabulary_size.min(known),
            n_state_slots: 0,
            ..of_model
        };
        let (max_logit_rows, max_sequence_tokens) =
            ((capacity.max_batch_sequences as usize).max(1), capacity.max_sequence_tokens as usize);
        let limits = DecoderLimits {
            max_tokens: capacity.max_batch_tokens as usize,
            max_logit_rows,
            max_sequence_tokens,
            n_positions: max_sequence_tokens.min(layout.n_blocks.saturating_mul(BLOCK_TOKENS)),
            n_state_slots: 0,
        };
        let cache = backend.kv_cache(&layout)?;
        Ok(Self {
            head: Head::new(&backend, config, weights, model, &limits)?,
            cache,
            shared,
            answers: BatchSampler::new(max_logit_rows, backend.host_threads().n_threads()),
            vocabulary_size: of_model.vocabulary_size as usize,
            input: BatchInput::default(),
            wanted: Vec::new(),
            features: Vec::new(),
            logits: Vec::new(),
            capacity,
            backend,
        })
    }

    /// Fills the step's input, and which of its tokens get a guess: the last one of each sequence that
    /// samples. The first token of a sequence gets none, since no token precedes it.
    fn prepare(&mut self, batch: &ScheduledBatch) {
        let wants = |sequence_idx: usize, token_idx: usize| {
            let scheduled = &batch.sequences()[sequence_idx];
            let position = scheduled.start as usize + token_idx;
            scheduled.sample && token_idx + 1 == scheduled.n_tokens() && position > 0
        };
        self.input.fill(batch, wants);
        self.wanted.clear();
        let last = batch.sequences().iter().map(|scheduled| scheduled.n_tokens() - 1).enumerate();
        let wanted = last.filter(|&(sequence_idx, last)| wants(sequence_idx, last));
        let wanted = wanted.map(|(sequence_idx, _)| Wanted {
            sequence_idx,
            next_prompt_token: None,
            n_drafts_before: 0,
        });
        self.wanted.extend(wanted);
        let width = self.head.config.decoder.hidden_size;
        self.features.clear();
        let shared = lock(&self.shared);
        for span in &self.input.spans {
            for position in span.start..span.start + span.n_rows {
                match position.checked_sub(1) {
                    Some(before) => {
                        self.features.extend_from_slice(shared.row(self.input.slot(span, before)))
                    }
                    None => self.features.resize(self.features.len() + width, 0.0),
                }
            }
        }
    }

    /// Chooses the guesses, and keeps the head's output where the model has none yet.
    fn answer(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), BackendError> {
        let n_wanted = self.wanted.len();
        if n_wanted > 0 {
            let width = self.head.config.decoder.hidden_size;
            let rows = self.head.outputs(&mut self.backend, 0..n_wanted)?;
            let mut shared = lock(&self.shared);
            for (wanted, row) in self.wanted.iter().zip(rows.chunks_exact(width)) {
                let span = &self.input.spans[wanted.sequence_idx];
                shared.set_row(self.input.slot(span, span.start + span.n_rows - 1), row);
            }
            drop(shared);
            self.read_logits(n_wanted)?;
            let on_device = vec![false; n_wanted];
            let rows =
                WantedRows { batch, wanted: &self.wanted, failed: Failed::default(), on_device: &on_device };
            self.answers.sample(&self.backend, rows, Duration::ZERO, &mut self.logits);
            self.answers.tell(rows, output);
        }
        begin_sequences(Failed::default(), batch.sequences().len(), output);
        Ok(())
    }

    /// Spreads the head's logits over the model's vocabulary.
    fn read_logits(&mut self, n_wanted: usize) -> Result<(), BackendError> {
        let vocabulary_size = self.vocabulary_size;
        self.logits.clear();
        self.logits.resize(n_wanted * vocabulary_size, f32::NEG_INFINITY);
        let n_drafts = self.head.config.draft_vocabulary_size;
        let weights = Arc::clone(&self.head.weights);
        let logits = self.head.logits(&mut self.backend, 0..n_wanted)?;
        for (logits, out) in logits.chunks_exact(n_drafts).zip(self.logits.chunks_exact_mut(vocabulary_size))
        {
            for (&token, &logit) in weights.target_tokens.iter().zip(logits) {
                out[token as usize] = logit;
            }
        }
        Ok(())
    }
}

impl<B: Backend> Executor for HeadRunner<B> {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        self.prepare(batch);
        self.head.forward(&mut self.backend, &mut self.cache, &self.input, &self.features);
        self.answer(batch, output).map_err(|error| ExecutorError::Device(error.to_string()))
    }
}
