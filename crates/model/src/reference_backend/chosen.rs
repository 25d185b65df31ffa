//! Attention over chosen positions in plain loops.

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::attention::ALL_POSITIONS;
use throng_kernels::reference;

use super::{KvLayer, ReferenceBackend};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{AttentionQueries, IndexQueries};
use crate::batch_input::BatchInput;

/// The positions of each token with the highest scores, in increasing order.
pub(super) fn choose(
    layer: &KvLayer,
    batch: &BatchInput,
    IndexQueries { qkv, weights, shape }: IndexQueries<'_, ReferenceBackend>,
    chosen: &mut HostTensor,
) {
    let (dim, n_chosen) = (shape.head_dim, chosen.cols());
    for span in &batch.spans {
        for i in 0..span.n_rows {
            let (row, end) = (span.first_row + i, span.start + i + 1);
            if end <= n_chosen {
                chosen.row_mut(row)[0] = ALL_POSITIONS;
                continue;
            }
            let score = |position: usize| -> f32 {
                let (block, slot) = batch.slot(span, position);
                let key = &layer.keys[(block * BLOCK_TOKENS + slot) * dim..][..dim];
                let of_head = |head: usize| {
                    let query = &qkv.row(row)[head * dim..][..dim];
                    let dot: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                    weights.row(row)[head] * dot.max(0.0)
                };
                (0..shape.n_heads).map(of_head).sum()
            };
            let scores: Vec<f32> = (0..end).map(score).collect();
            let mut best = reference::top_k(&scores, n_chosen);
            best.sort_unstable();
            chosen.row_mut(row).iter_mut().zip(best).for_each(|(out, position)| *out = position as f32);
        }
    }
}

/// Attention of every token over the positions that were chosen for it.
pub(super) fn attend(
    layer: &KvLayer,
    batch: &BatchInput,
    AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, ReferenceBackend>,
    chosen: &HostTensor,
    out: &mut HostTensor,
) {
    let (dim, value_dim) = (shape.head_dim, shape.value_dim());
    for span in &batch.spans {
        for i in 0..span.n_rows {
            let row = span.first_row + i;
            let positions: Vec<usize> = match chosen.row(row) {
                [first, ..] if *first == ALL_POSITIONS => (0..span.start + i + 1).collect(),
                positions => positions.iter().map(|position| *position as usize).collect(),
            };
            let key = |position: usize| {
                let (block, slot) = batch.slot(span, position);
                &layer.keys[(block * BLOCK_TOKENS + slot) * dim..][..dim]
            };
            for head in 0..shape.n_heads {
                let query = &qkv.row(row)[head * dim..][..dim];
                let score = |position: &usize| {
                    query.iter().zip(key(*position)).map(|(q, k)| q * k).sum::<f32>() * shape.scale
                };
                let mut weights: Vec<f32> = positions.iter().map(score).collect();
                reference::softmax(&mut weights);
                let out = &mut out.row_mut(row)[head * value_dim..][..value_dim];
                out.fill(0.0);
                for (weight, position) in weights.iter().zip(&positions) {
                    let value = &key(*position)[shape.values_in_keys.unwrap_or(0)..];
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
    }
}
