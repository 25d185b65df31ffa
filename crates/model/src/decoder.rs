//! The forward pass: one for all architectures, over any backend. Refuses to know where weights came from and what
//! is done with logits.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::{AttentionShape, Backend, BackendError, Columns, Operand};
use crate::batch_input::BatchInput;
use crate::config::{DecoderConfig, FeedForward, LayerConfig, QkNorm};
use crate::decoder_weights::{DecoderWeights, FeedForwardWeights, LayerWeights, SharedExpert};

/// A model on a device, with the buffers of its forward pass.
pub struct Decoder<B: Backend> {
    config: Arc<DecoderConfig>,
    weights: Arc<DecoderWeights<B>>,
    workspace: Workspace<B>,
}

/// The buffers of a forward pass, reused from step to step.
struct Workspace<B: Backend> {
    batch: B::Batch,
    /// The residual stream, `[tokens, hidden]`.
    residual: B::Buffer,
    /// What goes into a half of a layer, `[tokens, hidden]`.
    input: B::Buffer,
    /// What comes out of it, `[tokens, hidden]`.
    output: B::Buffer,
    /// Queries, keys and values.
    qkv: B::Buffer,
    /// Attention's result, `[tokens, n_heads * head_dim]`.
    attended: B::Buffer,
    routed: Option<Routed<B>>,
    /// Residual rows whose logits are wanted, `[logit rows, hidden]`.
    wanted: B::Buffer,
    /// `[logit rows, vocabulary]`.
    logits: B::Buffer,
}

/// Around a mixture of experts.
struct Routed<B: Backend> {
    router_logits: B::Buffer,
    shared: Option<Shared<B>>,
}

struct Shared<B: Backend> {
    gate: B::Buffer,
    output: B::Buffer,
}

impl<B: Backend> Decoder<B> {
    /// A decoder with room for steps of `max_tokens` tokens, of which `max_logit_rows` get logits at a time.
    ///
    /// # Errors
    /// When the device has no room for the buffers.
    pub fn new(
        backend: &B,
        config: Arc<DecoderConfig>,
        weights: Arc<DecoderWeights<B>>,
        max_tokens: usize,
        max_logit_rows: usize,
    ) -> Result<Self, BackendError> {
        let workspace = Workspace::new(backend, &config, max_tokens, max_logit_rows)?;
        Ok(Self { config, weights, workspace })
    }

    /// The architecture.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Runs all layers over a step's tokens: writes their keys and values and keeps the residual stream for
    /// [`Self::logits`].
    pub fn forward(&mut self, backend: &mut B, cache: &mut B::KvCache, input: &BatchInput) {
        let (config, weights, ws) = (&*self.config, &*self.weights, &mut self.workspace);
        backend.upload(input, &mut ws.batch);
        ws.set_rows(backend, input.n_tokens());
        backend.embed(&weights.embedding, &ws.batch, config.embedding_scale, &mut ws.residual);
        for (layer_idx, (layer, weights)) in config.layers.iter().zip(&weights.layers).enumerate() {
            attend(backend, cache, config, layer_idx, weights, ws);
            feed_forward(backend, config, layer, weights, ws);
        }
    }

    /// The logits of the tokens number `wanted` among those that the last step's input wants, `[wanted, vocabulary]`
    /// in host memory. The caller may overwrite them.
    ///
    /// # Errors
    /// When the device failed in this step.
    pub fn logits(&mut self, backend: &mut B, wanted: Range<usize>) -> Result<&mut [f32], BackendError> {
        let (config, weights, ws) = (&*self.config, &*self.weights, &mut self.workspace);
        for buffer in [&mut ws.wanted, &mut ws.logits] {
            backend.set_rows(buffer, wanted.len());
        }
        backend.gather_logit_rows(&ws.residual, &ws.batch, wanted, &mut ws.wanted);
        let output = weights.output.as_ref().unwrap_or(&weights.embedding);
        let x = Operand { x: &ws.wanted, norm: Some((&weights.final_norm, config.norm_eps)) };
        backend.matmul(x, output, None, &mut ws.logits);
        backend.finish_logits(&mut ws.logits, config.logits_scale, config.logits_softcap);
        backend.download(&mut ws.logits)
    }
}

/// The first half of a layer.
fn attend<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    layer_idx: usize,
    weights: &LayerWeights<B>,
    ws: &mut Workspace<B>,
) {
    let layer = &config.layers[layer_idx];
    let shape = attention_shape(config, layer);
    let norm = weights.pre_attention_norm.as_ref().map(|norm| (norm, config.norm_eps));
    let linear = &weights.query_key_value;
    let input = Operand { x: &ws.residual, norm };
    backend.matmul(input, &linear.weight, linear.bias.as_ref(), &mut ws.qkv);
    if let Some(norms) = &weights.query_key_norms {
        let (mut queries, mut keys) = (Columns::of_queries(&shape), Columns::of_keys(&shape));
        if config.qk_norm == QkNorm::WholeWidth {
            (queries, keys) = (one_group(queries), one_group(keys));
        }
        backend.norm_columns(&mut ws.qkv, queries, &norms.query, config.norm_eps);
        backend.norm_columns(&mut ws.qkv, keys, &norms.key, config.norm_eps);
    }
    if let Some(rope_idx) = layer.rope_idx {
        // Keys follow queries, so both turn in one pass.
        let heads = Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..Columns::of_queries(&shape) };
        backend.rope(&mut ws.qkv, &ws.batch, rope_idx, heads, config.rope_style);
    }
    backend.store_kv(cache, layer_idx, &ws.batch, &ws.qkv, &shape);
    backend.attention(cache, layer_idx, &ws.batch, &ws.qkv, &shape, &mut ws.attended);
    let (linear, post_norm) = (&weights.attention_output, weights.post_attention_norm.as_ref());
    let attended = Operand::of(&ws.attended);
    if adds_directly(config, post_norm) {
        return backend.matmul_add(attended, &linear.weight, linear.bias.as_ref(), &mut ws.residual);
    }
    backend.matmul(attended, &linear.weight, linear.bias.as_ref(), &mut ws.output);
    join(backend, config, post_norm, ws);
}

/// The second half of a layer.
fn feed_forward<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    layer: &LayerConfig,
    weights: &LayerWeights<B>,
    ws: &mut Workspace<B>,
) {
    let norm = weights.pre_feed_forward_norm.as_ref().map(|norm| (norm, config.norm_eps));
    let post_norm = weights.post_feed_forward_norm.as_ref();
    match (&weights.feed_forward, layer.feed_forward) {
        (FeedForwardWeights::Dense(unit), _) => {
            if adds_directly(config, post_norm) {
                return backend.gated_unit_add(norm, unit, config.activation, &mut ws.residual);
            }
            let input = Operand { x: &ws.residual, norm };
            backend.gated_unit(input, unit, config.activation, &mut ws.output);
        }
        (FeedForwardWeights::Experts { router, experts, shared }, FeedForward::Experts { routing, .. }) => {
            // Several things are made of it.
            let input = match norm {
                None => &ws.residual,
                Some((norm, eps)) => {
                    backend.rms_norm(&ws.residual, norm, eps, &mut ws.input);
                    &ws.input
                }
            };
            let routed = ws.routed.as_mut().expect("a model with experts has their buffers");
            backend.matmul(Operand::of(input), router, None, &mut routed.router_logits);
            let (logits, out) = (&routed.router_logits, &mut ws.output);
            backend.experts(input, logits, experts, &routing, config.activation, out);
            if let (Some(weights), Some(buffers)) = (shared, &mut routed.shared) {
                shared_expert(backend, config, input, weights, buffers);
                backend.add(&mut ws.output, &buffers.output, 1.0);
            }
        }
        (FeedForwardWeights::Experts { .. }, FeedForward::Dense { .. }) => {
            unreachable!("weights are loaded by the configuration")
        }
    }
    join(backend, config, post_norm, ws);
}

/// Whether what a half puts out is added to the residual stream as it is.
fn adds_directly<V>(config: &DecoderConfig, post_norm: Option<&V>) -> bool {
    post_norm.is_none() && config.residual_scale == 1.0
}

/// Adds a half's output to the residual stream, normed first where the family has it so.
fn join<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    post_norm: Option<&B::Vector>,
    ws: &mut Workspace<B>,
) {
    let output = match post_norm {
        None => &ws.output,
        Some(norm) => {
            backend.rms_norm(&ws.output, norm, config.norm_eps, &mut ws.input);
            &ws.input
        }
    };
    backend.add(&mut ws.residual, output, config.residual_scale);
}

fn shared_expert<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    input: &B::Buffer,
    weights: &SharedExpert<B>,
    buffers: &mut Shared<B>,
) {
    let input = Operand::of(input);
    backend.matmul(input, &weights.router, None, &mut buffers.gate);
    backend.gated_unit(input, &weights.unit, config.activation, &mut buffers.output);
    backend.gate_rows(&mut buffers.output, &buffers.gate);
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
    fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
        max_logit_rows: usize,
    ) -> Result<Self, BackendError> {
        let (hidden, heads_width) = (config.hidden_size, config.n_heads * config.head_dim);
        let qkv_width = heads_width + 2 * config.n_kv_heads * config.head_dim;
        let mut routed = None;
        for layer in &config.layers {
            if let FeedForward::Experts { n_experts, shared_width, .. } = layer.feed_forward
                && routed.is_none()
            {
                let shared = || -> Result<Shared<B>, BackendError> {
                    Ok(Shared {
                        gate: backend.buffer(max_tokens, 1)?,
                        output: backend.buffer(max_tokens, hidden)?,
                    })
                };
                let router_logits = backend.buffer(max_tokens, n_experts)?;
                routed = Some(Routed { router_logits, shared: shared_width.map(|_| shared()).transpose()? });
            }
        }
        Ok(Self {
            batch: backend.batch()?,
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
