//! Norms and rotation of the heads of queries, keys and values. Does not know products.

use super::Workspace;
use super::parts::norm_all_heads;
use super::weights::AttentionWeights;
use crate::backend::{Backend, Columns, Norm};
use crate::config::{AttentionConfig, LayerSplit, QkNorm};

/// Prepares heads for the cache and for attention.
pub(super) fn prepare_heads<B: Backend>(
    backend: &mut B,
    (attention, split): (&AttentionConfig, Option<&LayerSplit>),
    weights: &AttentionWeights<B>,
    eps: f32,
    ws: &mut Workspace<B>,
) {
    let norms_last = matches!(attention.qk_norm, QkNorm::PlainAfterRope | QkNorm::PerHeadAfterRope);
    if !norms_last {
        norm_heads(backend, (attention, split), weights, eps, ws);
    }
    if let Some(gain) = &weights.value_norm
        && attention.kv_layer_idx.is_none()
    {
        let values = Columns::of_values(&attention.shape());
        backend.norm_columns(&mut ws.attention.of(attention).qkv, values, Norm::rms(gain, eps));
    }
    if attention.value_scale != 1.0 {
        let values = Columns::of_values(&attention.shape());
        backend.scale_columns(&mut ws.attention.of(attention).qkv, values, attention.value_scale);
    }
    rotate_heads(backend, attention, ws);
    if norms_last {
        norm_heads(backend, (attention, split), weights, eps, ws);
    }
}

/// Norms the heads of queries and keys.
fn norm_heads<B: Backend>(
    backend: &mut B,
    (attention, split): (&AttentionConfig, Option<&LayerSplit>),
    weights: &AttentionWeights<B>,
    eps: f32,
    ws: &mut Workspace<B>,
) {
    let Some(norms) = &weights.query_key_norms else { return };
    let (shape, qkv) = (attention.shape(), &mut ws.attention.of(attention).qkv);
    let (mut queries, mut keys) = (Columns::of_queries(&shape), Columns::of_keys(&shape));
    if attention.qk_norm == QkNorm::WholeWidth {
        if let Some(split) = split {
            return norm_all_heads(backend, split, attention, norms, eps, qkv);
        }
        (queries, keys) = (one_group(queries), one_group(keys));
    }
    let [of_queries, of_keys] = norms.biases.each_ref().map(Option::as_ref);
    backend.norm_columns(qkv, queries, Norm { gain: &norms.query, bias: of_queries, eps });
    if attention.kv_layer_idx.is_none() {
        backend.norm_columns(qkv, keys, Norm { gain: &norms.key, bias: of_keys, eps });
    }
}

/// Rotates queries and keys.
fn rotate_heads<B: Backend>(backend: &mut B, attention: &AttentionConfig, ws: &mut Workspace<B>) {
    let shape = attention.shape();
    let qkv = &mut ws.attention.of(attention).qkv;
    let mut rope = |idx, heads| {
        backend.rope(qkv, &ws.batch, &ws.ropes, idx, heads, attention.rope_style);
    };
    let (queries, has_keys) = (Columns::of_queries(&shape), attention.kv_layer_idx.is_none());
    match (attention.rope_idx, attention.query_rope_idx) {
        // Keys follow queries, so both are rotated by one operation.
        (Some(rope_idx), None) if has_keys => {
            rope(rope_idx, Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..queries });
        }
        (rope_idx, query_rope_idx) => {
            if let Some(query_rope_idx) = query_rope_idx.or(rope_idx) {
                rope(query_rope_idx, queries);
            }
            if let Some(rope_idx) = rope_idx.filter(|_| has_keys) {
                rope(rope_idx, Columns::of_keys(&shape));
            }
        }
    }
}

fn one_group(columns: Columns) -> Columns {
    Columns { n_groups: 1, width: columns.n_groups * columns.width, ..columns }
}
