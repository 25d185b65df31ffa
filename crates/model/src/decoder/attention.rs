//! The attention of a layer, with adapters or without. Does not know feed-forward blocks and other mixers.

use super::weights::{AttentionWeights, LayerWeights};
use super::{LayerAdapters, Workspace, add_output, adds_directly, norm};
use crate::adapter::LayerAdapter;
use crate::backend::{AttentionShape, Backend, BackendError, Columns, Norm};
use crate::config::{AttentionConfig, DecoderConfig, QkNorm};

/// The weights of a layer, and those of its attention.
type Weights<'a, B> = (&'a LayerWeights<B>, &'a AttentionWeights<B>);

/// The buffers of attention, one pair for each shape of heads in the model.
pub(super) struct AttentionBuffers<B: Backend>(Vec<HeadBuffers<B>>);

struct HeadBuffers<B: Backend> {
    /// Columns of `qkv` and of `attended`.
    widths: (usize, usize),
    /// Queries, keys and values.
    qkv: B::Buffer,
    /// The output of attention, `[tokens, n_heads * head_dim]`.
    attended: B::Buffer,
}

impl<B: Backend> AttentionBuffers<B> {
    pub(super) fn new(backend: &B, config: &DecoderConfig, max_tokens: usize) -> Result<Self, BackendError> {
        let mut all: Vec<HeadBuffers<B>> = Vec::new();
        for attention in config.attentions() {
            let widths = widths(attention);
            if all.iter().all(|buffers| buffers.widths != widths) {
                let qkv = backend.buffer(max_tokens, widths.0)?;
                let attended = backend.buffer(max_tokens, widths.1)?;
                all.push(HeadBuffers { widths, qkv, attended });
            }
        }
        Ok(Self(all))
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        for HeadBuffers { qkv, attended, .. } in &mut self.0 {
            backend.set_rows(qkv, n_rows);
            backend.set_rows(attended, n_rows);
        }
    }

    fn of(&mut self, attention: &AttentionConfig) -> &mut HeadBuffers<B> {
        let widths = widths(attention);
        let buffers = self.0.iter_mut().find(|buffers| buffers.widths == widths);
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
    let shape = attention_shape(attention);
    let buffers = ws.attention.of(attention);
    let linear = &of_attention.query_key_value;
    let (weight, bias) = (&linear.weight, linear.bias.as_ref());
    let qkv_of: fn(&LayerAdapter<B>) -> &Option<B::LowRank> = |layer| &layer.query_key_value;
    match norm(config, &weights.pre_mixer_norm) {
        None => {
            backend.matmul(&ws.residual, weight, bias, &mut buffers.qkv);
            adapters.add(backend, &ws.residual, qkv_of, &mut buffers.qkv);
        }
        Some(norm) => {
            backend.norm_matmul(&ws.residual, norm, weight, bias, &mut ws.scratch, &mut buffers.qkv);
            if adapters.any(qkv_of) {
                backend.rms_norm(&ws.residual, norm, &mut ws.input);
                adapters.add(backend, &ws.input, qkv_of, &mut buffers.qkv);
            }
        }
    }
    if let Some(norms) = &of_attention.query_key_norms {
        let (mut queries, mut keys) = (Columns::of_queries(&shape), Columns::of_keys(&shape));
        if attention.qk_norm == QkNorm::WholeWidth {
            (queries, keys) = (one_group(queries), one_group(keys));
        }
        let norm = |gain| Norm { gain, eps: config.norm_eps };
        backend.norm_columns(&mut buffers.qkv, queries, norm(&norms.query));
        backend.norm_columns(&mut buffers.qkv, keys, norm(&norms.key));
    }
    if let Some(rope_idx) = attention.rope_idx {
        let mut rope = |idx, heads| {
            backend.rope(&mut buffers.qkv, &ws.batch, &ws.ropes, idx, heads, attention.rope_style);
        };
        let queries = Columns::of_queries(&shape);
        match attention.query_rope_idx {
            // Keys follow queries, so both are rotated by one operation.
            None => rope(rope_idx, Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..queries }),
            Some(query_rope_idx) => {
                rope(query_rope_idx, queries);
                rope(rope_idx, Columns::of_keys(&shape));
            }
        }
    }
    backend.store_kv(cache, layer_idx, &ws.batch, &buffers.qkv, &shape);
    backend.attention(cache, layer_idx, &ws.batch, &buffers.qkv, &shape, &mut buffers.attended);
    if attention.has_output_gate {
        let first_col = Columns::of_values(&shape).end();
        backend.gate_columns(&mut buffers.attended, &buffers.qkv, first_col);
    }
    let (linear, post_norm) = (&of_attention.output, norm(config, &weights.post_mixer_norm));
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

fn attention_shape(attention: &AttentionConfig) -> AttentionShape {
    AttentionShape {
        n_heads: attention.n_heads,
        n_kv_heads: attention.n_kv_heads,
        head_dim: attention.head_dim,
        scale: attention.scale,
        softcap: attention.softcap,
        window: attention.sliding_window,
        first_position: 0,
    }
}

fn one_group(columns: Columns) -> Columns {
    Columns { n_groups: 1, width: columns.n_groups * columns.width, ..columns }
}
