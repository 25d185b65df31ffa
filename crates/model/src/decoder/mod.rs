//! The forward pass: one for all architectures, over any backend. Does not know the source of weights and the
//! use of logits.

mod attention;
mod encoder;
mod experts;
mod feed_forward;
mod heads;
mod hybrid;
mod indexer;
mod latent;
mod mixers;
mod parts;
mod per_layer;
mod recurrent;
mod relative;
mod states;
pub mod weights;

use std::ops::Range;
use std::sync::Arc;

use crate::adapter::{LayerAdapter, StepAdapters};
use crate::backend::{Backend, BackendError, Columns, DeviceMemory, Norm, Scratch, StepShape};
use crate::batch_input::BatchInput;
use crate::config::{DecoderConfig, FeedForward, NormPlacement, Stage};
use crate::state_cache::StateLayout;

use attention::AttentionBuffers;
use encoder::{Lookup, embed_segments};
use feed_forward::feed_forward;
use indexer::IndexerBuffers;
use latent::LatentBuffers;
use mixers::mix_tokens;
use parts::embed_part;
use per_layer::{PerLayerBuffers, add_per_layer, embed_for_layers};
use recurrent::RecurrentBuffers;
use relative::RelativeBuffers;
use weights::{DecoderWeights, NormWeights};

/// A model on a device, or a [`Stage`](crate::config::Stage) of it, with the buffers of its forward pass.
pub struct Decoder<B: Backend> {
    config: Arc<DecoderConfig>,
    weights: Arc<DecoderWeights<B>>,
    workspace: Workspace<B>,
}

/// Reads the residual stream before a layer, `[tokens, hidden]`, given the layer's index.
pub type Observe<'a, B> = dyn FnMut(&mut B, usize, &<B as DeviceMemory>::Buffer) + 'a;

/// Bounds on the steps of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Maximum number of tokens of a step.
    pub max_tokens: usize,
    /// Maximum number of tokens that get logits at a time.
    pub max_logit_rows: usize,
    /// Maximum number of tokens of a sequence; the rotary embedding depends on it (LongRoPE).
    pub max_sequence_tokens: usize,
    /// Positions are below this.
    pub n_positions: usize,
    /// Number of slots of recurrent state, if the model has recurrent layers.
    pub n_state_slots: usize,
}

/// The buffers of a forward pass, reused from step to step.
struct Workspace<B: Backend> {
    batch: B::Batch,
    lookup: Option<Lookup<B>>,
    ropes: B::RopeTables,
    scratch: Scratch<B>,
    /// The residual stream, `[tokens, hidden]`.
    residual: B::Buffer,
    /// The normed input of a block, where several operations read it, `[tokens, hidden]`.
    input: B::Buffer,
    /// The output of a block before it is added to the residual stream, `[tokens, hidden]`.
    output: B::Buffer,
    attention: AttentionBuffers<B>,
    recurrent: RecurrentBuffers<B>,
    relative: Option<RelativeBuffers<B>>,
    latent: Option<LatentBuffers<B>>,
    indexer: Option<IndexerBuffers<B>>,
    per_layer: Option<PerLayerBuffers<B>>,
    routed: Option<Routed<B>>,
    /// Residual rows whose logits are wanted, `[logit rows, hidden]`.
    wanted: B::Buffer,
    /// `[logit rows, vocabulary]`.
    logits: B::Buffer,
    /// Columns of the logits that this device computes, if others compute the rest.
    own_logits: Option<B::Buffer>,
}

/// The buffers of a mixture of experts.
struct Routed<B: Backend> {
    router_logits: B::Buffer,
    /// Input and output of experts that do not work on the residual stream.
    latent: Option<[B::Buffer; 2]>,
    shared: Option<Shared<B>>,
}

struct Shared<B: Backend> {
    gate: B::Buffer,
    output: B::Buffer,
}

impl<B: Backend> Decoder<B> {
    /// A decoder with the buffers of its steps.
    ///
    /// # Errors
    /// When the memory of the device does not suffice.
    pub fn new(
        backend: &B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        limits: &DecoderLimits,
    ) -> Result<Self, BackendError> {
        let workspace = Workspace::new(backend, &config, &weights.stage, limits)?;
        Ok(Self { config, weights, workspace })
    }

    /// Configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The part of the model that it has.
    pub fn stage(&self) -> &Stage {
        &self.weights.stage
    }

    /// Runs all layers over a step's tokens: writes their keys and values and keeps the residual stream for
    /// [`Self::logits`].
    ///
    /// # Panics
    /// When this is a stage without the embedding, as the other functions that begin with tokens.
    pub fn forward(&mut self, backend: &mut B, cache: &mut B::KvCache, input: &BatchInput) {
        self.forward_with(backend, cache, input, &StepAdapters::default());
    }

    /// [`Self::forward`] with the adapters of the step.
    pub fn forward_with(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        input: &BatchInput,
        adapters: &StepAdapters<B>,
    ) {
        let shape = self.embed(backend, input);
        self.run_layers(backend, cache, (input, shape), adapters, None);
    }

    /// [`Self::forward_with`], showing `observe` the residual stream before each layer, `[tokens, hidden]`,
    /// with the layer's index.
    pub fn forward_observed(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        input: &BatchInput,
        adapters: &StepAdapters<B>,
        observe: &mut Observe<'_, B>,
    ) {
        let shape = self.embed(backend, input);
        self.run_layers(backend, cache, (input, shape), adapters, Some(observe));
    }

    /// Computes the residual stream of a step's tokens.
    fn embed(&mut self, backend: &mut B, input: &BatchInput) -> StepShape {
        self.begin(backend, input);
        let (config, ws) = (&*self.config, &mut self.workspace);
        let embedding = self.weights.embedding.as_ref().expect("the stage embeds tokens");
        match &embedding.encoder {
            None if config.split.is_some() => embed_part(backend, config, &embedding.table, ws),
            None => backend.embed(&embedding.table, &ws.batch, config.embedding_scale, &mut ws.residual),
            Some(encoder) => embed_segments(backend, config, &embedding.table, encoder, input, ws),
        }
        for rows in &input.features {
            backend.overwrite_rows(&mut ws.residual, rows.first_row, rows.rows());
        }
        if let Some(gain) = &embedding.norm {
            let whole = Columns { first: 0, n_groups: 1, width: config.hidden_size };
            backend.norm_columns(&mut ws.residual, whole, Norm::rms(gain, config.norm_eps));
        }
        if let Some(per_layer) = &embedding.per_layer {
            embed_for_layers(backend, config, per_layer, ws);
        }
        StepShape::of(input)
    }

    /// Runs the layers of a stage without the embedding over the residual stream of the stage before,
    /// `[tokens, hidden]`.
    pub fn forward_from(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        input: &BatchInput,
        residual: &[f32],
        adapters: &StepAdapters<B>,
    ) {
        self.begin(backend, input);
        backend.write_rows(&mut self.workspace.residual, residual);
        self.run_layers(backend, cache, (input, StepShape::of(input)), adapters, None);
    }

    /// The residual stream after the last layer of a stage, `[tokens, hidden]`: the input of the next one.
    /// The caller may overwrite it; its contents on the device are unspecified afterwards.
    ///
    /// # Errors
    /// When an operation of the step failed on the device.
    pub fn residual(&mut self, backend: &mut B) -> Result<&mut [f32], BackendError> {
        backend.download(&mut self.workspace.residual)
    }

    /// Copies a step's input to the device.
    fn begin(&mut self, backend: &mut B, input: &BatchInput) {
        backend.upload(input, &mut self.workspace.batch);
        self.workspace.set_rows(backend, input.n_tokens());
    }

    fn run_layers(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        (input, shape): (&BatchInput, StepShape),
        adapters: &StepAdapters<B>,
        mut observe: Option<&mut Observe<'_, B>>,
    ) {
        let (config, ws, stage) = (&*self.config, &mut self.workspace, &self.weights.stage);
        // Encoders and norms of sums exchange buffers.
        let has_fixed_buffers = config.encoder.is_none() && config.norms != NormPlacement::PostSum;
        let is_plain = adapters.is_empty() && input.features.is_empty();
        let is_announced = has_fixed_buffers && observe.is_none() && is_plain;
        if is_announced && backend.begin_layers(shape) {
            return;
        }
        for (layer_idx, weights) in stage.layers.clone().zip(&self.weights.layers) {
            if backend.has_failed() {
                break;
            }
            let layer = &config.layers[layer_idx];
            let adapters = LayerAdapters { step: adapters, layer_idx };
            if let Some(observe) = &mut observe {
                observe(backend, layer_idx, &ws.residual);
            }
            let reads_first = config.is_parallel && layer.feed_forward != FeedForward::None;
            if reads_first {
                feed_forward(backend, config, layer, weights, adapters, ws);
            }
            mix_tokens(backend, cache, config, layer, (weights, adapters), ws);
            match reads_first {
                // Mixers that are added to the residual stream directly leave the output buffer as it is.
                true => backend.add(&mut ws.residual, &ws.output, 1.0),
                false => feed_forward(backend, config, layer, weights, adapters, ws),
            }
            if let Some(per_layer) = &weights.per_layer {
                add_per_layer(backend, config, layer_idx, per_layer, ws);
            }
            if let Some(scalar) = weights.scalar {
                backend.scale_and_cap(&mut ws.residual, scalar, None);
            }
            for rows in &input.features {
                if let Some(deepstack) = rows.deepstack(layer_idx) {
                    backend.add_rows(&mut ws.residual, rows.first_row, deepstack);
                }
            }
        }
        if is_announced {
            backend.end_layers();
        }
    }

    /// Computes the logits of the tokens number `wanted` among those that the last step's input wants,
    /// `[wanted, vocabulary]`, and leaves them on the device for [`Backend::sample`] or
    /// [`DeviceMemory::download`].
    ///
    /// # Panics
    /// When this is a stage without the head.
    pub fn logits(&mut self, backend: &mut B, wanted: Range<usize>) -> &mut B::Buffer {
        let (config, ws, head) = (&*self.config, &mut self.workspace, self.weights.head());
        for buffer in [&mut ws.wanted, &mut ws.logits].into_iter().chain(&mut ws.own_logits) {
            backend.set_rows(buffer, wanted.len());
        }
        let logits = ws.own_logits.as_mut().unwrap_or(&mut ws.logits);
        backend.gather_logit_rows(&ws.residual, &ws.batch, wanted, &mut ws.wanted);
        let output = head.output.as_ref().unwrap_or_else(|| self.weights.embedding_table());
        let bias = head.bias.as_ref();
        match norm(config, &head.norm) {
            None => backend.matmul(&ws.wanted, output, bias, logits),
            Some(norm) => backend.norm_matmul(&ws.wanted, norm, output, bias, &mut ws.scratch, logits),
        }
        if config.logits_scale != 1.0 || config.logits_softcap.is_some() {
            backend.scale_and_cap(logits, config.logits_scale, config.logits_softcap);
        }
        if let (Some(split), Some(own)) = (&config.split, &ws.own_logits) {
            let widths: Vec<usize> = split.vocabularies.iter().map(Range::len).collect();
            backend.gather_columns(own, &widths, &mut ws.logits);
        }
        &mut ws.logits
    }

    /// The outputs of the last layer, normed where there is a norm after it, of the tokens number `wanted`
    /// among those that the last step's input wants: in one of the two buffers, which are `[wanted, hidden]`.
    pub(crate) fn outputs<'a>(
        &mut self,
        backend: &mut B,
        wanted: Range<usize>,
        [gathered, normed]: [&'a mut B::Buffer; 2],
    ) -> &'a mut B::Buffer {
        let (config, ws, head) = (&*self.config, &self.workspace, self.weights.head());
        backend.set_rows(gathered, wanted.len());
        backend.gather_logit_rows(&ws.residual, &ws.batch, wanted.clone(), gathered);
        let Some(norm) = norm(config, &head.norm) else { return gathered };
        backend.set_rows(normed, wanted.len());
        backend.norm_rows(gathered, norm, normed);
        normed
    }

    /// The logits that were computed last.
    pub fn latest_logits(&mut self) -> &mut B::Buffer {
        &mut self.workspace.logits
    }
}

/// The adapters of a step in one layer.
struct LayerAdapters<'a, B: Backend> {
    step: &'a StepAdapters<B>,
    layer_idx: usize,
}

impl<B: Backend> Clone for LayerAdapters<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LayerAdapters<'_, B> {}

impl<'a, B: Backend> LayerAdapters<'a, B> {
    /// Whether an adapter changes a product of the layer.
    fn any(self, part: fn(&LayerAdapter<B>) -> &Option<B::LowRank>) -> bool {
        self.step.any(self.layer_idx, |layer| part(layer).is_some())
    }

    /// Adds the adapters' changes to the product of `x`, if there are any.
    fn add(
        self,
        backend: &mut B,
        x: &B::Buffer,
        part: fn(&LayerAdapter<B>) -> &Option<B::LowRank>,
        out: &mut B::Buffer,
    ) {
        if self.any(part) {
            let Self { step, layer_idx } = self;
            backend.add_low_rank(x, &step.groups, &|group| part(step.layer(group, layer_idx)).as_ref(), out);
        }
    }
}

fn norm<'a, B: Backend>(config: &DecoderConfig, norm: &'a Option<NormWeights<B>>) -> Option<Norm<'a, B>> {
    norm.as_ref().map(|norm| norm.with(config.norm_eps))
}

/// The norm after a mixer or a feed-forward.
fn post_norm<'a, B: Backend>(
    config: &DecoderConfig,
    norm: &'a Option<NormWeights<B>>,
) -> Option<Norm<'a, B>> {
    norm.as_ref().map(|norm| norm.with(config.post_norm_eps))
}

fn post_norm_of<'a, B: Backend>(config: &DecoderConfig, gain: &'a B::Vector) -> Norm<'a, B> {
    Norm::rms(gain, config.post_norm_eps)
}

/// Whether the output of a block is added to the residual stream as it is.
fn adds_directly<B: Backend>(config: &DecoderConfig, post_norm: Option<Norm<'_, B>>) -> bool {
    post_norm.is_none() && config.residual_scale == 1.0
}

/// Adds the output of a block, summed over devices, to the residual stream, normed first or with it where the
/// family does so.
fn add_output<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    post_norm: Option<Norm<'_, B>>,
    ws: &mut Workspace<B>,
) {
    if let (NormPlacement::PostSum, Some(norm)) = (config.norms, post_norm) {
        backend.add(&mut ws.residual, &ws.output, config.residual_scale);
        backend.norm_rows(&ws.residual, norm, &mut ws.input);
        return std::mem::swap(&mut ws.residual, &mut ws.input);
    }
    let output = match post_norm {
        None => &ws.output,
        Some(norm) => {
            backend.norm_rows(&ws.output, norm, &mut ws.input);
            &ws.input
        }
    };
    backend.add(&mut ws.residual, output, config.residual_scale);
}

impl<B: Backend> Workspace<B> {
    fn new(
        backend: &B,
        config: &DecoderConfig,
        stage: &Stage,
        limits: &DecoderLimits,
    ) -> Result<Self, BackendError> {
        let &DecoderLimits { max_tokens, max_sequence_tokens, n_positions, n_state_slots, .. } = limits;
        let max_logit_rows = if stage.has_head { limits.max_logit_rows } else { 0 };
        let states = StateLayout::new(config, n_state_slots).of_layers(&stage.layers);
        let hidden = config.hidden_size;
        let mut routed = None;
        for layer in &config.layers {
            if let FeedForward::Experts { n_experts, shared, .. } = layer.feed_forward
                && routed.is_none()
            {
                let buffers = || -> Result<Shared<B>, BackendError> {
                    Ok(Shared {
                        gate: backend.buffer(max_tokens, 1)?,
                        output: backend.buffer(max_tokens, hidden)?,
                    })
                };
                let router_logits = backend.buffer(max_tokens, n_experts)?;
                let latent =
                    |size| Ok([backend.buffer(max_tokens, size)?, backend.buffer(max_tokens, size)?]);
                let latent = config.expert_size.map(latent).transpose()?;
                let shared = shared.map(|_| buffers()).transpose()?;
                routed = Some(Routed { router_logits, latent, shared });
            }
        }
        let widths = config.layers.iter().flat_map(|layer| match layer.feed_forward {
            FeedForward::None => None,
            FeedForward::Dense { width } => Some(width),
            FeedForward::Experts { shared, .. } => shared.map(|shared| shared.width),
        });
        let ropes: Vec<_> = config.ropes.iter().map(|rope| rope.for_context(max_sequence_tokens)).collect();
        Ok(Self {
            batch: backend.batch()?,
            lookup: config.encoder.map(|_| Lookup::new(backend)).transpose()?,
            ropes: backend.rope_tables(&ropes, n_positions)?,
            scratch: Scratch::new(backend, max_tokens.max(max_logit_rows), hidden, widths, config.has_gates)?,
            residual: backend.buffer(max_tokens, hidden)?,
            input: backend.buffer(max_tokens, hidden)?,
            output: backend.buffer(max_tokens, hidden)?,
            attention: AttentionBuffers::new(backend, config, max_tokens)?,
            recurrent: RecurrentBuffers::new(backend, config, max_tokens, &states)?,
            relative: RelativeBuffers::new(backend, config, max_tokens)?,
            latent: LatentBuffers::new(backend, config, max_tokens)?,
            indexer: IndexerBuffers::new(backend, config, max_tokens)?,
            per_layer: PerLayerBuffers::new(backend, config, max_tokens)?,
            routed,
            wanted: backend.buffer(max_logit_rows, hidden)?,
            logits: backend.buffer(max_logit_rows, config.vocabulary_size)?,
            own_logits: config
                .split
                .as_ref()
                .map(|split| backend.buffer(max_logit_rows, split.vocabulary().len()))
                .transpose()?,
        })
    }

    fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        self.attention.set_rows(backend, n_rows);
        self.recurrent.set_rows(backend, n_rows);
        if let Some(relative) = &mut self.relative {
            relative.set_rows(backend, n_rows);
        }
        if let Some(latent) = &mut self.latent {
            latent.set_rows(backend, n_rows);
        }
        if let Some(indexer) = &mut self.indexer {
            indexer.set_rows(backend, n_rows);
        }
        if let Some(per_layer) = &mut self.per_layer {
            per_layer.set_rows(backend, n_rows);
        }
        let buffers = [&mut self.residual, &mut self.input, &mut self.output];
        let routed = self.routed.iter_mut().flat_map(|routed| {
            let shared = routed.shared.iter_mut().flat_map(|shared| [&mut shared.gate, &mut shared.output]);
            std::iter::once(&mut routed.router_logits).chain(routed.latent.iter_mut().flatten()).chain(shared)
        });
        for buffer in buffers.into_iter().chain(routed) {
            backend.set_rows(buffer, n_rows);
        }
    }
}
