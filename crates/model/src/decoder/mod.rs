//! The forward pass: one for all architectures, over any backend. Does not know where weights came from and what logits are
//! used for.

mod feed_forward;
pub mod weights;

use std::ops::Range;
use std::sync::Arc;

use crate::adapter::{LayerAdapter, StepAdapters};
use crate::backend::{AttentionShape, Backend, BackendError, Columns, Norm, Scratch, StepShape};
use crate::batch_input::BatchInput;
use crate::config::{DecoderConfig, FeedForward, LayerConfig, QkNorm};

use feed_forward::feed_forward;
use weights::{DecoderWeights, LayerWeights};

/// A model on a device, with the buffers of its forward pass.
pub struct Decoder<B: Backend> {
    config: Arc<DecoderConfig>,
    weights: Arc<DecoderWeights<B>>,
    workspace: Workspace<B>,
}

/// How large the steps of a decoder are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// Most tokens that get logits at a time.
    pub max_logit_rows: usize,
    /// Most tokens of a sequence; the rotary embedding depends on it (LongRoPE).
    pub max_sequence_tokens: usize,
    /// Positions are below this.
    pub n_positions: usize,
}

/// The buffers of a forward pass, reused from step to step.
struct Workspace<B: Backend> {
    batch: B::Batch,
    ropes: B::RopeTables,
    scratch: Scratch<B>,
    /// The residual stream, `[tokens, hidden]`.
    residual: B::Buffer,
    /// The normed input of a block, where several operations read it, `[tokens, hidden]`.
    input: B::Buffer,
    /// The output of a block before it is added to the residual stream, `[tokens, hidden]`.
    output: B::Buffer,
    /// Queries, keys and values.
    qkv: B::Buffer,
    /// The output of attention, `[tokens, n_heads * head_dim]`.
    attended: B::Buffer,
    routed: Option<Routed<B>>,
    /// Residual rows whose logits are wanted, `[logit rows, hidden]`.
    wanted: B::Buffer,
    /// `[logit rows, vocabulary]`.
    logits: B::Buffer,
}

/// The buffers of a mixture of experts.
struct Routed<B: Backend> {
    router_logits: B::Buffer,
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
        let workspace = Workspace::new(backend, &config, limits)?;
        Ok(Self { config, weights, workspace })
    }

    /// The architecture.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Runs all layers over a step's tokens: writes their keys and values and keeps the residual stream for
    /// [`Self::logits`].
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
        let (config, weights, ws) = (&*self.config, &*self.weights, &mut self.workspace);
        backend.begin_step(StepShape::of(input));
        backend.upload(input, &mut ws.batch);
        ws.set_rows(backend, input.n_tokens());
        backend.embed(&weights.embedding, &ws.batch, config.embedding_scale, &mut ws.residual);
        for (layer_idx, (layer, weights)) in config.layers.iter().zip(&weights.layers).enumerate() {
            let adapters = LayerAdapters { step: adapters, layer_idx };
            attend(backend, cache, config, layer, (weights, adapters), ws);
            feed_forward(backend, config, layer, (weights, adapters), ws);
        }
    }

    /// Computes the logits of the tokens number `wanted` among those that the last step's input wants, `[wanted, vocabulary]`,
    /// and leaves them on the device: [`Backend::choose`] or [`DeviceMemory::download`](crate::backend::DeviceMemory::download)
    /// take them from there.
    pub fn logits(&mut self, backend: &mut B, wanted: Range<usize>) -> &mut B::Buffer {
        let (config, weights, ws) = (&*self.config, &*self.weights, &mut self.workspace);
        for buffer in [&mut ws.wanted, &mut ws.logits] {
            backend.set_rows(buffer, wanted.len());
        }
        backend.gather_logit_rows(&ws.residual, &ws.batch, wanted, &mut ws.wanted);
        let output = weights.output.as_ref().unwrap_or(&weights.embedding);
        let norm = Norm { gain: &weights.final_norm, eps: config.norm_eps };
        backend.norm_matmul(&ws.wanted, norm, output, None, &mut ws.scratch, &mut ws.logits);
        backend.finish_logits(&mut ws.logits, config.logits_scale, config.logits_softcap);
        &mut ws.logits
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
    /// Whether one of them changes a product of the layer.
    fn any(self, part: fn(&LayerAdapter<B>) -> &Option<B::LowRank>) -> bool {
        self.step.any(self.layer_idx, |layer| part(layer).is_some())
    }

    /// Adds what they change in the product of `x`, if any does.
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

/// The attention block of a layer.
fn attend<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    layer: &LayerConfig,
    (weights, adapters): (&LayerWeights<B>, LayerAdapters<'_, B>),
    ws: &mut Workspace<B>,
) {
    let layer_idx = adapters.layer_idx;
    let shape = attention_shape(config, layer);
    let linear = &weights.query_key_value;
    let (weight, bias) = (&linear.weight, linear.bias.as_ref());
    let qkv_of: fn(&LayerAdapter<B>) -> &Option<B::LowRank> = |layer| &layer.query_key_value;
    match norm(config, &weights.pre_attention_norm) {
        None => {
            backend.matmul(&ws.residual, weight, bias, &mut ws.qkv);
            adapters.add(backend, &ws.residual, qkv_of, &mut ws.qkv);
        }
        Some(norm) => {
            backend.norm_matmul(&ws.residual, norm, weight, bias, &mut ws.scratch, &mut ws.qkv);
            if adapters.any(qkv_of) {
                backend.rms_norm(&ws.residual, norm, &mut ws.input);
                adapters.add(backend, &ws.input, qkv_of, &mut ws.qkv);
            }
        }
    }
    if let Some(norms) = &weights.query_key_norms {
        let (mut queries, mut keys) = (Columns::of_queries(&shape), Columns::of_keys(&shape));
        if config.qk_norm == QkNorm::WholeWidth {
            (queries, keys) = (one_group(queries), one_group(keys));
        }
        let norm = |gain| Norm { gain, eps: config.norm_eps };
        backend.norm_columns(&mut ws.qkv, queries, norm(&norms.query));
        backend.norm_columns(&mut ws.qkv, keys, norm(&norms.key));
    }
    if let Some(rope_idx) = layer.rope_idx {
        let mut rope = |idx, heads| {
            backend.rope(&mut ws.qkv, &ws.batch, &ws.ropes, idx, heads, config.rope_style);
        };
        let queries = Columns::of_queries(&shape);
        match layer.query_rope_idx {
            // Keys follow queries, so both are rotated by one operation.
            None => rope(rope_idx, Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..queries }),
            Some(query_rope_idx) => {
                rope(query_rope_idx, queries);
                rope(rope_idx, Columns::of_keys(&shape));
            }
        }
    }
    backend.store_kv(cache, layer_idx, &ws.batch, &ws.qkv, &shape);
    backend.attention(cache, layer_idx, &ws.batch, &ws.qkv, &shape, &mut ws.attended);
    let (linear, post_norm) = (&weights.attention_output, norm(config, &weights.post_attention_norm));
    let (weight, bias) = (&linear.weight, linear.bias.as_ref());
    if adds_directly(config, post_norm) {
        backend.matmul_add(&ws.attended, weight, bias, &mut ws.scratch, &mut ws.residual);
        return adapters.add(backend, &ws.attended, |layer| &layer.attention_output, &mut ws.residual);
    }
    backend.matmul(&ws.attended, weight, bias, &mut ws.output);
    backend.all_reduce(&mut ws.output);
    adapters.add(backend, &ws.attended, |layer| &layer.attention_output, &mut ws.output);
    add_output(backend, config, post_norm, ws);
}

fn norm<'a, B: Backend>(config: &DecoderConfig, gain: &'a Option<B::Vector>) -> Option<Norm<'a, B>> {
    gain.as_ref().map(|gain| Norm { gain, eps: config.norm_eps })
}

/// Whether the output of a block is added to the residual stream as it is.
fn adds_directly<B: Backend>(config: &DecoderConfig, post_norm: Option<Norm<'_, B>>) -> bool {
    post_norm.is_none() && config.residual_scale == 1.0
}

/// Adds the output of a block, summed over devices, to the residual stream, normed first where the family does so.
fn add_output<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    post_norm: Option<Norm<'_, B>>,
    ws: &mut Workspace<B>,
) {
    let output = match post_norm {
        None => &ws.output,
        Some(norm) => {
            backend.rms_norm(&ws.output, norm, &mut ws.input);
            &ws.input
        }
    };
    backend.add(&mut ws.residual, output, config.residual_scale);
}

fn attention_shape(config: &DecoderConfig, layer: &LayerConfig) -> AttentionShape {
    AttentionShape {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        scale: config.attention_scale,
        softcap: config.attention_softcap,
        window: layer.sliding_window,
    }
}

fn one_group(columns: Columns) -> Columns {
    Columns { n_groups: 1, width: columns.n_groups * columns.width, ..columns }
}

impl<B: Backend> Workspace<B> {
    fn new(backend: &B, config: &DecoderConfig, limits: &DecoderLimits) -> Result<Self, BackendError> {
        let &DecoderLimits { max_tokens, max_logit_rows, max_sequence_tokens, n_positions } = limits;
        let (hidden, heads_width) = (config.hidden_size, config.n_heads * config.head_dim);
        let qkv_width = heads_width + 2 * config.n_kv_heads * config.head_dim;
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
                routed = Some(Routed { router_logits, shared: shared.map(|_| buffers()).transpose()? });
            }
        }
        let widths = config.layers.iter().flat_map(|layer| match layer.feed_forward {
            FeedForward::Dense { width } => Some(width),
            FeedForward::Experts { shared, .. } => shared.map(|shared| shared.width),
        });
        let ropes: Vec<_> = config.ropes.iter().map(|rope| rope.for_context(max_sequence_tokens)).collect();
        Ok(Self {
            batch: backend.batch()?,
            ropes: backend.rope_tables(&ropes, n_positions)?,
            scratch: Scratch::new(backend, max_tokens.max(max_logit_rows), hidden, widths)?,
            residual: backend.buffer(max_tokens, hidden)?,
            input: backend.buffer(max_tokens, hidden)?,
            output: backend.buffer(max_tokens, hidden)?,
            qkv: backend.buffer(max_tokens, qkv_width)?,
            attended: backend.buffer(max_tokens, heads_width)?,
            routed,
            wanted: backend.buffer(max_logit_rows, hidden)?,
            logits: backend.buffer(max_logit_rows, config.vocabulary_size)?,
        })
    }

    fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        let buffers =
            [&mut self.residual, &mut self.input, &mut self.output, &mut self.qkv, &mut self.attended];
        let routed = self.routed.iter_mut().flat_map(|routed| {
            let shared = routed.shared.iter_mut().flat_map(|shared| [&mut shared.gate, &mut shared.output]);
            std::iter::once(&mut routed.router_logits).chain(shared)
        });
        for buffer in buffers.into_iter().chain(routed) {
            backend.set_rows(buffer, n_rows);
        }
    }
}
