//! The executor of a model: batch in, tokens and log-probabilities out. Does not know requests and
//! scheduling; the only time that it reports is that of choosing tokens.

mod blocks;
mod ranks;
mod split;
mod stage;
mod step;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, MemorySlot, ScheduledBatch, ScheduledSequence, StepOutput,
};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::time::Nanos;

use crate::adapter::AdapterStore;
use crate::backend::{Backend, BackendError, Capability, SampledRows, Ticket};
use crate::batch_sampler::{BatchSampler, Failed, WantedRows, begin_sequences, mask_patience};
use crate::config::{DecoderConfig, Stage};
use crate::decoder::weights::DecoderWeights;
use crate::decoder::{Decoder, DecoderLimits};
use crate::device_sampling::sample_on_device;
use crate::eagle::FeatureTap;
use crate::kv_cache::{KvDtype, KvLayout};
use crate::media::{MediaEncoder, MediaReader};
use crate::parallel::StageLinks;
use crate::state_cache::StateLayout;
pub use ranks::{FollowError, Leader, follow};
pub use split::{SplitRunner, StageOn};
use stage::run_stage;
use step::{Progress, RunnerStep};

/// Maximum number of slots of recurrent state for checkpoints, beyond the slots of running sequences.
const CHECKPOINT_SLOTS: usize = 16;

/// Bounds on the size of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Number of KV blocks of 16 tokens.
    pub n_blocks: u32,
    /// Storage of keys and values.
    pub kv_dtype: KvDtype,
    /// Maximum number of new tokens in one batch.
    pub max_batch_tokens: u32,
    /// Maximum number of sequences in one batch.
    pub max_batch_sequences: u32,
    /// Maximum number of tokens of one sequence; never more than the model's context.
    pub max_sequence_tokens: Option<u32>,
}

/// Runs batches on a backend.
pub struct ModelRunner<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    cache: B::KvCache,
    answers: BatchSampler,
    adapters: Arc<AdapterStore<B>>,
    /// Fingerprint for exchanging blocks with other runners; `None` if blocks are not exchanged.
    fingerprint: Option<Arc<str>>,
    kv_dtype: KvDtype,
    tap: Option<FeatureTap<B>>,
    media: Option<MediaReader>,
    /// Links to the other stages, unless this stage has all layers.
    stages: Option<StageLinks>,
    /// The steps that were submitted and not collected, the oldest first.
    in_flight: VecDeque<RunnerStep<B>>,
    /// The buffers of steps that were collected.
    spare_steps: Vec<RunnerStep<B>>,
    /// The answers of the device.
    sampled: SampledRows,
    /// The last token of each sequence of the step that was collected last; 0 if it has none.
    collected: Vec<TokenId>,
    capacity: ExecutorCapacity,
    /// Maximum number of positions whose logits are in memory at once, `vocabulary * 4` bytes each: one for
    /// each sequence of a batch, so that a decode step reads the output matrix once. Drafts and prompts with
    /// all their log-probabilities may need more; they are answered in pieces.
    max_logit_rows: usize,
}

impl<B: Backend> ModelRunner<B> {
    /// A runner with its KV cache and buffers.
    ///
    /// # Errors
    /// When the memory of the device does not suffice or it does not support such a cache.
    ///
    /// # Panics
    /// When the weights are those of a stage alone.
    pub fn new(
        backend: B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        limits: &RunnerLimits,
    ) -> Result<Self, BackendError> {
        assert_eq!(*weights.stage(), Stage::whole(&config), "a runner of a whole model");
        Self::of_stage(backend, config, weights, limits)
    }

    /// A runner of the stage that the weights are of.
    pub(crate) fn of_stage(
        backend: B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        limits: &RunnerLimits,
    ) -> Result<Self, BackendError> {
        let layout = KvLayout::new(&config, limits.kv_dtype, limits.n_blocks as usize);
        let layout = layout.of_layers(&weights.stage().layers);
        if layout.bytes().is_none() {
            let heads: BTreeSet<_> = config.cache_shapes().map(|shape| shape.head_dim).collect();
            let heads: Vec<_> = heads.iter().map(usize::to_string).collect();
            let what = format!("a {} KV cache with heads of {}", limits.kv_dtype, heads.join(" and "));
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
            max_steps_in_flight: backend.max_steps_in_flight() as u32,
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
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
            adapters: Arc::default(),
            fingerprint: None,
            kv_dtype: limits.kv_dtype,
            tap: None,
            media: None,
            stages: None,
            in_flight: VecDeque::new(),
            spare_steps: Vec::new(),
            sampled: SampledRows::default(),
            collected: Vec::new(),
            capacity,
            max_logit_rows,
        })
    }

    /// Sets the store of adapters; a sequence with an unknown adapter fails.
    #[must_use]
    pub fn with_adapters(self, store: Arc<AdapterStore<B>>) -> Self {
        Self { adapters: store, ..self }
    }

    /// Sets the encoder of pictures in prompts. `placeholder_token` is the id of the tokens that features
    /// replace, if the decoder also looks it up.
    ///
    /// # Errors
    /// When the device does not take features.
    pub fn with_encoder(
        self,
        encoder: Box<dyn MediaEncoder>,
        placeholder_token: u32,
    ) -> Result<Self, BackendError> {
        if !self.backend.has(Capability::Features) {
            return Err(BackendError::lacks(Capability::Features));
        }
        let config = self.decoder.config();
        let (width, n_layers) = (config.hidden_size, config.layers.len());
        let keeps_media_whole = config.joins_pictures;
        let media = Some(MediaReader::new(encoder, width, n_layers, placeholder_token));
        let capacity = ExecutorCapacity { takes_media: true, keeps_media_whole, ..self.capacity };
        Ok(Self { media, capacity, ..self })
    }

    /// Sets the fingerprint. Runners with equal fingerprints exchange blocks; fingerprints are equal for
    /// models whose outputs are equal to the bit.
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: Arc<str>) -> Self {
        Self { fingerprint: Some(fingerprint), ..self }
    }

    /// Sets the tap, which keeps the rows that a head reads of the runner's steps. The host computes the
    /// head, so steps run one at a time.
    #[must_use]
    pub(crate) fn with_tap(self, tap: FeatureTap<B>) -> Self {
        let capacity = ExecutorCapacity { max_steps_in_flight: 1, ..self.capacity };
        Self { tap: Some(tap), capacity, ..self }
    }

    /// Begins the forward pass of a step, and keeps the features for a head, if there is one. The step before
    /// it is in flight, or was collected.
    fn forward(
        &mut self,
        step: &mut RunnerStep<B>,
        before: Option<&RunnerStep<B>>,
    ) -> Result<(), BackendError> {
        step.carry_tokens(before, &self.collected);
        (step.progress, step.begun) = (Progress::Forward, Instant::now());
        if !step.copies.is_empty() {
            self.backend.copy_blocks(&mut self.cache, &step.copies);
        }
        if !step.state_copies.is_empty() {
            self.decoder.copy_states(&mut self.backend, &step.state_copies);
        }
        if step.input.n_tokens() == 0 {
            return Ok(());
        }
        let Self { backend, decoder, cache, stages, .. } = self;
        if let Some(stages) = stages {
            return run_stage(backend, decoder, cache, stages, step);
        }
        let Some(tap) = &mut self.tap else {
            decoder.forward_with(backend, cache, &step.input, &step.adapters);
            return Ok(());
        };
        tap.copy(&step.copies);
        let mut observe =
            |backend: &mut B, layer_idx, residual: &B::Buffer| tap.observe(backend, layer_idx, residual);
        decoder.forward_observed(backend, cache, &step.input, &step.adapters, &mut observe);
        tap.keep(backend, &step.input)
    }

    /// Begins the logits of a step, if there is room for them, and lets the device sample the rows that it
    /// can.
    fn begin_logits(&mut self, step: &mut RunnerStep<B>, batch: &ScheduledBatch) {
        let Self { backend, decoder, max_logit_rows, .. } = self;
        let n_rows = step.wanted.len();
        if n_rows == 0 {
            step.on_device.clear();
            step.progress = Progress::Sampled(backend.submit());
        } else if n_rows <= *max_logit_rows {
            let logits = decoder.logits(backend, 0..n_rows);
            step.progress = match sample_on_device(backend, batch, &step.wanted, logits, &mut step.on_device)
            {
                0 => Progress::Logits(None),
                n if n == n_rows => Progress::Sampled(backend.submit()),
                _ => Progress::Logits(Some(backend.submit())),
            };
        }
    }

    /// Answers rows whose logits were begun.
    fn answer(
        &mut self,
        rows: WantedRows<'_>,
        ticket: Option<Ticket>,
        begun: Instant,
        output: &mut StepOutput,
    ) -> Result<(), BackendError> {
        if let Some(ticket) = ticket {
            self.sampled.clear();
            self.backend.collect(ticket, &mut self.sampled)?;
            self.answers.take_sampled(rows.on_device, &self.sampled);
        }
        if rows.on_device.contains(&false) {
            let logits = self.backend.download_unknown(self.decoder.latest_logits(), rows.on_device)?;
            let choosing = Instant::now();
            let patience = mask_patience(rows.batch, begun.elapsed());
            self.answers.sample(&self.backend, rows, patience, logits);
            output.choosing.0 += Nanos::from(choosing.elapsed()).0;
        }
        self.answers.tell(rows, output);
        Ok(())
    }

    /// Samples in several parts if the logits of a step do not fit at once.
    fn answer_in_pieces(
        &mut self,
        step: &mut RunnerStep<B>,
        batch: &ScheduledBatch,
        output: &mut StepOutput,
    ) -> Result<(), BackendError> {
        for first in (0..step.wanted.len()).step_by(self.max_logit_rows) {
            let piece = first..step.wanted.len().min(first + self.max_logit_rows);
            let (wanted, on_device) = (&step.wanted[piece.clone()], &mut step.on_device);
            let logits = self.decoder.logits(&mut self.backend, piece);
            let n_sampled = sample_on_device(&mut self.backend, batch, wanted, logits, on_device);
            let ticket = (n_sampled > 0).then(|| self.backend.submit());
            let failed =
                Failed { unknown_adapter: step.adapters.unknown(), unreadable_media: &step.unreadable };
            let rows = WantedRows { batch, wanted, failed, on_device };
            self.answer(rows, ticket, step.begun, output)?;
        }
        Ok(())
    }

    /// Keeps the tokens that the next step may carry.
    fn note_collected(&mut self, output: &StepOutput) {
        let last = |sequence_idx| output.sampled(sequence_idx).last().map_or(0, |token| token.chosen.token);
        self.collected.clear();
        self.collected.extend((0..output.n_sequences()).map(last));
    }
}

impl<B: Backend> Executor for ModelRunner<B> {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
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

    /// Begins the step, if steps may be in flight and the previous one has left its tokens on the device.
    /// Else it begins when the previous one has been collected: if the host chooses tokens, the buffers are
    /// in use until then.
    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        let in_vocabulary = |token: &TokenId| *token < self.capacity.vocabulary_size;
        assert!(batch.all_tokens().iter().all(in_vocabulary), "a token outside the vocabulary");
        assert!(batch.n_tokens() <= self.capacity.max_batch_tokens as usize, "a batch beyond the capacity");
        let has_states = self.capacity.n_state_slots > 0;
        let needs_state = |scheduled: &ScheduledSequence| scheduled.state.is_some() == has_states;
        assert!(
            batch.sequences().iter().all(needs_state),
            "a recurrent state for each sequence, or for none"
        );
        let mut step = self.spare_steps.pop().unwrap_or_else(RunnerStep::new);
        step.prepare(batch, &self.adapters)?;
        if let Some(media) = &mut self.media {
            step.input.fill_rotary(batch);
            if self.capacity.keeps_media_whole {
                step.input.fill_ends(batch);
            }
            media.encode(batch).map_err(executor_error)?;
            let read = media.read(batch, &mut step.input, &mut step.unreadable);
            step.media = read.map_err(executor_error)?;
        }
        let before = self.in_flight.pop_back();
        let mut begun = Ok(());
        // A stage would wait here for the one before it.
        if self.capacity.max_steps_in_flight > 1
            && self.stages.is_none()
            && before.as_ref().is_none_or(|before| matches!(before.progress, Progress::Sampled(_)))
        {
            begun = self.forward(&mut step, before.as_ref()).map_err(executor_error);
            self.begin_logits(&mut step, batch);
        }
        self.in_flight.extend(before);
        self.in_flight.push_back(step);
        begun
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        let Some(mut step) = self.in_flight.pop_front() else {
            return Err(ExecutorError::Device("no step was submitted".to_owned()));
        };
        if let Progress::Prepared = step.progress {
            self.forward(&mut step, None).map_err(executor_error)?;
        }
        if let Progress::Forward = step.progress {
            self.begin_logits(&mut step, batch);
        }
        let ticket = match step.progress {
            Progress::Sampled(ticket) => Some(Some(ticket)),
            Progress::Logits(ticket) => Some(ticket),
            Progress::Prepared | Progress::Forward => None,
        };
        let answered = match ticket {
            Some(ticket) => {
                let (failed, RunnerStep { wanted, on_device, .. }) = (step.failed(), &step);
                self.answer(WantedRows { batch, wanted, failed, on_device }, ticket, step.begun, output)
            }
            None => self.answer_in_pieces(&mut step, batch, output),
        };
        answered.map_err(executor_error)?;
        output.media = step.media;
        begin_sequences(step.failed(), batch.sequences().len(), output);
        self.note_collected(output);
        if self.stages.is_none()
            && let Some(mut next) = self.in_flight.pop_front()
        {
            if let Progress::Prepared = next.progress {
                self.forward(&mut next, None).map_err(executor_error)?;
            }
            self.in_flight.push_front(next);
        }
        self.spare_steps.push(step);
        Ok(())
    }
}

/// Slots of recurrent state, for a model with such layers: one for each sequence of a batch, and the same
/// number for checkpoints, up to a bound.
pub fn n_state_slots(max_batch_sequences: u32) -> usize {
    let n = max_batch_sequences as usize;
    n + n.min(CHECKPOINT_SLOTS)
}

fn executor_error(error: BackendError) -> ExecutorError {
    match error {
        BackendError::OutOfMemory { .. } => ExecutorError::OutOfMemory(error.to_string()),
        BackendError::PeerLost(lost) => ExecutorError::PeerLost(lost),
        _ => ExecutorError::Device(error.to_string()),
    }
}
