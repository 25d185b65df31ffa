//! The attention of a layer, with adapters or without. Does not know feed-forward blocks and other mixers.

use super::heads::prepare_heads;
use super::relative::attend_relatively;
use super::weights::{AttentionWeights, LayerWeights};
use super::{LayerAdapters, Workspace, add_output, adds_directly, norm, post_norm};
use crate::adapter::LayerAdapter;
use crate::backend::{AttentionQueries, Backend, BackendError, Columns};
use crate::config::{AttentionConfig, DecoderConfig};

/// The weights of a layer, and those of its attention.
type Weights<'a, B> = (&'a LayerWeights<B>, &'a AttentionWeights<B>);

/// The buffers of attention, one pair for each shape of heads in the model.
pub(super) struct AttentionBuffers<B: Backend> {
    all: Vec<HeadBuffers<B>>,
    /// Whether the model gates the outputs of attention.
    is_gated: bool,
}

pub(super) struct HeadBuffers<B: Backend> {
    /// Columns of `qkv` and of `attended`.
    widths: (usize, usize),
    /// Queries, keys and values.
    pub(super) qkv: B::Buffer,
    /// The output of attention, `[tokens, n_heads * head_dim]`.
    pub(super) attended: B::Buffer,
    /// Logits of the sigmoid that the output is multiplied with, in a model that has it; of the same shape.
    gates: B::Buffer,
}

impl<B: Backend> AttentionBuffers<B> {
    pub(super) fn new(backend: &B, config: &DecoderConfig, max_tokens: usize) -> Result<Self, BackendError> {
        let mut all: Vec<HeadBuffers<B>> = Vec::new();
        let is_gated = config.attentions().any(|attention| attention.is_gated);
        for attention in config.attentions() {
            let widths = widths(attention);
            if all.iter().all(|buffers| buffers.widths != widths) {
                let qkv = backend.buffer(max_tokens, widths.0)?;
                let attended = backend.buffer(max_tokens, widths.1)?;
                let gates = backend.buffer(if is_gated { max_tokens } else { 0 }, widths.1)?;
                all.push(HeadBuffers { widths, qkv, attended, gates });
            }
        }
        Ok(Self { all, is_gated })
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        let is_gated = self.is_gated;
        for HeadBuffers { qkv, attended, gates, .. } in &mut self.all {
            backend.set_rows(qkv, n_rows);
            backend.set_rows(attended, n_rows);
            if is_gated {
                backend.set_rows(gates, n_rows);
            }
        }
    }

    pub(super) fn of(&mut self, attention: &AttentionConfig) -> &mut HeadBuffers<B> {
        let widths = widths(attention);
        let buffers = self.all.iter_mut().find(|buffers| buffers.widths == widths);
        buffers.expect("there are buffers for every shape of heads")
    }
}

fn widths(attention: &AttentionConfig) -> (usize, usize) {
    (attention.qkv_width(), attention.query_width())
}

/// The attention block of a layer.
pub(super) fn attend<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    attention: &AttentionConfig,
    ((weights, of_attention), adapters): (Weights<'_, B>, LayerAdapters<'_, B>),
    ws: &mut Workspace<B>,
) {
    let layer_idx = adapters.layer_idx;
    let shape = attention.shape();
    project(backend, config, attention, ((weights, of_attention), adapters), ws);
    let split = config.split.as_ref().map(|split| &split.layers[layer_idx]);
    prepare_heads(backend, (attention, split), of_attention, config.norm_eps, ws);
    let buffers = ws.attention.of(attention);
    match (&config.relative, &of_attention.relative, &mut ws.relative) {
        (Some(positions), Some(weights), Some(scores)) => {
            let heads = (&buffers.qkv, &mut buffers.attended);
            attend_relatively(backend, &ws.batch, &shape, (positions, weights), scores, heads);
        }
        _ => {
            if attention.kv_layer_idx.is_none() {
                backend.store_kv(cache, layer_idx, &ws.batch, &buffers.qkv, &shape);
            }
            let kv_layer_idx = attention.kv_layer_idx.unwrap_or(layer_idx);
            let sinks = of_attention.sinks.as_ref();
            let queries = AttentionQueries { qkv: &buffers.qkv, shape: &shape, sinks };
            backend.attention(cache, kv_layer_idx, &ws.batch, queries, &mut buffers.attended);
        }
    }
    if let Some(gate) = &of_attention.gate {
        let input = match norm(config, &weights.pre_mixer_norm) {
            None => &ws.residual,
            Some(norm) => {
                backend.norm_rows(&ws.residual, norm, &mut ws.input);
                &ws.input
            }
        };
        backend.matmul(input, gate, None, &mut buffers.gates);
        backend.gate_columns(&mut buffers.attended, &buffers.gates, 0);
    }
    if attention.has_output_gate {
        let first_col = Columns::of_values(&shape).end();
        backend.gate_columns(&mut buffers.attended, &buffers.qkv, first_col);
    }
    let (linear, post_norm) = (&of_attention.output, post_norm(config, &weights.post_mixer_norm));
    let (weight, bias) = (&linear.weight, linear.bias.as_ref());
    if adds_directly(config, post_norm) {
        backend.matmul_add(&buffers.attended, weight, bias, &mut ws.scratch, &mut ws.residual);
        return adapters.add(backend, &buffers.attended, |layer| &layer.attention_output, &mut ws.residual);
    }
    backend.matmul(&buffers.attended, weight, bias, &mut ws.output);
    backend.all_reduce(&mut ws.output);
    adapters.add(backend, &buffers.attended, |layer| &layer.attention_output, &mut ws.output);
    add_output(backend, config, post_norm, ws);
}

/// Queries, keys and values of the layer's input.
fn project<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    attention: &AttentionConfig,
    ((weights, of_attention), adapters): (Weights<'_, B>, LayerAdapters<'_, B>),
    ws: &mut Workspace<B>,
) {
    let qkv = &mut ws.attention.of(attention).qkv;
    let linear = &of_attention.query_key_value;
    let (weight, bias) = (&linear.weight, linear.bias.as_ref());
    let qkv_of: fn(&LayerAdapter<B>) -> &Option<B::LowRank> = |layer| &layer.query_key_value;
    match norm(config, &weights.pre_mixer_norm) {
        None => {
            backend.matmul(&ws.residual, weight, bias, qkv);
            adapters.add(backend, &ws.residual, qkv_of, qkv);
        }
        Some(norm) => {
            backend.norm_matmul(&ws.residual, norm, weight, bias, &mut ws.scratch, qkv);
            if adapters.any(qkv_of) {
                backend.norm_rows(&ws.residual, norm, &mut ws.input);
                adapters.add(backend, &ws.input, qkv_of, qkv);
            }
        }
    }
}
