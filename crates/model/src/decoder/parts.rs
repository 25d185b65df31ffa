//! Operations of a decoder of which each device has a part of every layer. Does not know how devices
//! communicate.

use std::ops::Range;

use super::Workspace;
use super::weights::{QueryKeyNorms, RecurrentWeights};
use crate::backend::{Backend, Columns, SplitColumns};
use crate::config::{AttentionConfig, DecoderConfig, LayerSplit, Mixer, StateSpaceShape};

/// Computes the residual stream of a step's tokens: each device has the embeddings of some tokens.
pub(super) fn embed_part<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    table: &B::Matrix,
    ws: &mut Workspace<B>,
) {
    let split = config.split.as_ref().expect("the model is divided");
    backend.embed_part(table, &ws.batch, split.vocabulary(), config.embedding_scale, &mut ws.residual);
    backend.all_reduce(&mut ws.residual);
}

/// Norms of all heads together, of which this device has some.
pub(super) fn norm_all_heads<B: Backend>(
    backend: &mut B,
    split: &LayerSplit,
    attention: &AttentionConfig,
    norms: &QueryKeyNorms<B>,
    eps: f32,
    qkv: &mut B::Buffer,
) {
    let (shape, heads) = (attention.shape(), &split.attention);
    let one_group =
        |columns: Columns| Columns { n_groups: 1, width: columns.n_groups * columns.width, ..columns };
    let queries = SplitColumns {
        columns: one_group(Columns::of_queries(&shape)),
        sum_idx: 0,
        n_sums: 2,
        n_columns: heads.n_heads * attention.head_dim,
        is_counted: true,
        gain: &norms.query,
        first_gain: 0,
    };
    let keys = SplitColumns {
        columns: one_group(Columns::of_keys(&shape)),
        sum_idx: 1,
        n_columns: heads.n_groups * attention.head_dim,
        is_counted: heads.is_first,
        gain: &norms.key,
        ..queries
    };
    let has_keys = attention.kv_layer_idx.is_none();
    if has_keys {
        backend.norm_split_columns(qkv, &[queries, keys], eps);
    } else {
        backend.norm_split_columns(qkv, &[queries], eps);
    }
}

/// The norm of a state space model's output whose groups of columns are on several devices.
pub(super) fn norm_states<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    layer_idx: usize,
    mixer: &Mixer,
    weights: &RecurrentWeights<B>,
    output: &mut B::Buffer,
) {
    let Some(split) = &config.split else { return };
    let split = &split.layers[layer_idx];
    let (Some(gain), Some(width)) = (&weights.split_norm, split.state_norm_width) else { return };
    let (Mixer::StateSpace(shape) | Mixer::Hybrid(crate::config::HybridConfig { state_space: shape, .. })) =
        mixer
    else {
        return;
    };
    let (own, all) = columns(shape, split);
    let n_sums = all / width;
    let in_group = |sum_idx: usize| -> Option<SplitColumns<'_, B>> {
        let (start, end) = (own.start.max(sum_idx * width), own.end.min((sum_idx + 1) * width));
        let first = start.checked_sub(own.start)?;
        (start < end).then(|| SplitColumns {
            columns: Columns { first, n_groups: 1, width: end - start },
            sum_idx,
            n_sums,
            n_columns: width,
            is_counted: true,
            gain,
            first_gain: first,
        })
    };
    let parts: Vec<_> = (0..n_sums).filter_map(in_group).collect();
    backend.norm_split_columns(output, &parts, config.norm_eps);
}

/// Columns of a state space model's output that this device has, and the number of all.
fn columns(shape: &StateSpaceShape, split: &LayerSplit) -> (Range<usize>, usize) {
    let heads = &split.states.heads;
    (heads.start * shape.head_dim..heads.end * shape.head_dim, split.states.n_heads * shape.head_dim)
}
