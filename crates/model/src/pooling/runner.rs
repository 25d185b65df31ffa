//! The executor of a pooling model: batch in, a vector for each sequence out. Does not know requests and
//! scheduling.

use std::sync::Arc;

use throng_core::scheduling::batch::{
    BLOCK_TOKENS, ScheduledBatch, ScheduledSequence, SequenceError, StepOutput,
};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use super::{Pooler, Pooling, PoolingHead};
use crate::backend::{Backend, BackendError};
use crate::batch_input::BatchInput;
use crate::config::DecoderConfig;
use crate::decoder::weights::{DecoderWeights, TensorError};
use crate::decoder::{Decoder, DecoderLimits};
use crate::kv_cache::KvLayout;
use crate::runner::{RunnerLimits, n_state_slots};
use crate::state_cache::StateLayout;
use throng_checkpoint::TensorSource;

/// Number of outputs of tokens that are on the host at a time.
const ROWS_AT_A_TIME: usize = 256;

/// Runs batches of a pooling model. The result of a sequence whose prompt has been computed is one vector in
/// place of a token.
pub struct PoolingRunner<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    cache: B::KvCache,
    pooler: Pooler,
    head: PoolingHead<B>,
    norm_eps: f32,
    input: BatchInput,
    rows: [B::Buffer; 2],
    /// The sums of pooled outputs, `[sequences, hidden]`.
    sums: Vec<f64>,
    pooled: Vec<f32>,
    hidden: usize,
    capacity: ExecutorCapacity,
}

impl<B: Backend> PoolingRunner<B> {
    /// A runner with its KV cache and buffers.
    ///
    /// # Errors
    /// When the memory of the device does not suffice, or tensors of the head are missing or of wrong shapes.
    pub(crate) fn new(
        backend: B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        limits: &RunnerLimits,
        pooler: &Pooler,
        tensors: &Arc<dyn TensorSource>,
    ) -> Result<Self, TensorError> {
        let layout = KvLayout::new(&config, limits.kv_dtype, limits.n_blocks as usize);
        let takes_whole_prompts = pooler.takes_whole_prompts(&config);
        let longest = config.max_sequence_tokens.min(pooler.config.max_tokens.unwrap_or(usize::MAX)) as u32;
        let longest = limits.max_sequence_tokens.map_or(longest, |most| most.min(longest));
        let n_state_slots = StateLayout::new(&config, n_state_slots(limits.max_batch_sequences)).n_slots;
        let capacity = ExecutorCapacity {
            n_blocks: limits.n_blocks,
            max_batch_tokens: limits.max_batch_tokens,
            max_batch_sequences: limits.max_batch_sequences,
            // The vector counts as a token that is never computed.
            max_sequence_tokens: longest.saturating_add(1),
            vocabulary_size: config.n_token_ids() as u32,
            n_state_slots: n_state_slots as u32,
            max_steps_in_flight: 1,
            takes_whole_prompts,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let decoder_limits = DecoderLimits {
            max_tokens: limits.max_batch_tokens as usize,
            max_logit_rows: 1,
            max_sequence_tokens: longest as usize,
            n_state_slots,
            n_positions: (longest as usize).min(layout.n_blocks.saturating_mul(BLOCK_TOKENS)),
        };
        let (hidden, norm_eps) = (config.hidden_size, config.norm_eps);
        let max_sequences = limits.max_batch_sequences as usize;
        let (head, norm_eps) = PoolingHead::load(&backend, pooler, tensors, max_sequences, hidden, norm_eps)?;
        let rows = || backend.buffer(ROWS_AT_A_TIME, hidden);
        Ok(Self {
            rows: [rows()?, rows()?],
            decoder: Decoder::new(&backend, config, weights, &decoder_limits)?,
            cache: backend.kv_cache(&layout)?,
            pooler: pooler.clone(),
            head,
            norm_eps,
            input: BatchInput::default(),
            sums: Vec::new(),
            pooled: Vec::new(),
            hidden,
            capacity,
            backend,
        })
    }

    /// Sums the pooled outputs of each sequence, in the order of their tokens, and leaves their mean in
    /// `pooled`: one row for each sequence of `owners`, which has the sequence of each wanted token.
    fn pool(&mut self, owners: &[usize], n_pooled: usize) -> Result<(), BackendError> {
        self.sums.clear();
        self.sums.resize(n_pooled * self.hidden, 0.0);
        let mut counts = vec![0_u32; n_pooled];
        for first in (0..owners.len()).step_by(ROWS_AT_A_TIME) {
            let wanted = first..owners.len().min(first + ROWS_AT_A_TIME);
            let [gathered, normed] = &mut self.rows;
            let rows = self.decoder.outputs(&mut self.backend, wanted.clone(), [gathered, normed]);
            let rows = self.backend.download(rows)?;
            for (row, &owner) in rows.chunks_exact(self.hidden).zip(&owners[wanted]) {
                let sums = &mut self.sums[owner * self.hidden..][..self.hidden];
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
                counts[owner] += 1;
            }
        }
        let rows = self.sums.chunks_exact(self.hidden).zip(counts);
        self.pooled.clear();
        self.pooled.extend(
            rows.flat_map(|(sums, n)| sums.iter().map(move |sum| (sum / f64::from(n.max(1))) as f32)),
        );
        Ok(())
    }
}

impl<B: Backend> Executor for PoolingRunner<B> {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let failed = |error: BackendError| ExecutorError::Device(error.to_string());
        output.clear();
        let pooling = self.pooler.config.pooling;
        let is_pooled = |sequence_idx: usize, i: usize| {
            let scheduled = &batch.sequences()[sequence_idx];
            scheduled.sample && is_pooled(pooling, scheduled, i)
        };
        self.input.fill(batch, is_pooled);
        let (mut owners, mut n_pooled) = (Vec::with_capacity(self.input.logit_tokens.len()), 0);
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            let n = (0..scheduled.n_tokens()).filter(|&i| is_pooled(sequence_idx, i)).count();
            owners.extend(std::iter::repeat_n(n_pooled, n));
            n_pooled += usize::from(n > 0);
        }
        let copies = batch.state_copies();
        if !copies.is_empty() {
            self.decoder.copy_states(&mut self.backend, copies);
        }
        self.decoder.forward(&mut self.backend, &mut self.cache, &self.input);
        self.pool(&owners, n_pooled).map_err(failed)?;
        let vectors: &mut [f32] = match n_pooled {
            0 => &mut [],
            _ => self.head.run(&mut self.backend, &self.pooled, self.norm_eps).map_err(failed)?,
        };
        let width = vectors.len().checked_div(n_pooled).unwrap_or(0).max(1);
        if self.pooler.config.normalizes {
            vectors.chunks_exact_mut(width).for_each(normalize);
        }
        let mut vectors = vectors.chunks_exact(width);
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            output.begin_sequence();
            let has_vector = (0..scheduled.n_tokens()).any(|i| is_pooled(sequence_idx, i));
            let vector = if has_vector { vectors.next() } else { None };
            match vector {
                _ if scheduled.adapter.is_some() => output.fail_sequence(SequenceError::UnknownAdapter),
                Some(vector) if vector.iter().any(|x| !x.is_finite()) => {
                    output.fail_sequence(SequenceError::InvalidLogits);
                }
                Some(vector) => output.push_vector(vector),
                None if scheduled.sample => output.fail_sequence(SequenceError::NoToken),
                None => {}
            }
        }
        Ok(())
    }
}

/// Whether the output of new token `i` of a sequence is pooled.
fn is_pooled(pooling: Pooling, scheduled: &ScheduledSequence, i: usize) -> bool {
    match pooling {
        Pooling::First => scheduled.start as usize + i == 0,
        Pooling::Last => i + 1 == scheduled.n_tokens(),
        Pooling::Mean => true,
    }
}

/// Divides a vector by its length.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}
