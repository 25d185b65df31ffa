//! Attention over chosen positions on the example device, in plain loops. Does not know layers.

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::attention::ALL_POSITIONS;
use throng_kernels::reference;
use throng_model::backend::{AttentionQueries, IndexQueries};
use throng_model::batch_input::{BatchInput, QuerySpan};

use super::{ExampleBackend, Rows};

/// The key of a position in a layer whose tokens have one key of `dim` elements.
fn key<'a>(keys: &'a [f32], batch: &BatchInput, span: &QuerySpan, position: usize, dim: usize) -> &'a [f32] {
    let (block, slot) = batch.slot(span, position);
    &keys[(block * BLOCK_TOKENS + slot) * dim..][..dim]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Marks the positions that each token attends to.
pub(super) fn choose(
    keys: &[f32],
    batch: &BatchInput,
    IndexQueries { qkv, weights, shape }: IndexQueries<'_, ExampleBackend>,
    chosen: &mut Rows,
) {
    let dim = shape.head_dim;
    let (qkv, weights): (Vec<_>, Vec<_>) = (qkv.iter().collect(), weights.iter().collect());
    let mut chosen: Vec<&mut [f32]> = chosen.iter_mut().collect();
    for span in &batch.spans {
        for i in 0..span.n_rows {
            let row = span.first_row + i;
            let n_seen = span.start + i + 1;
            let out = &mut *chosen[row];
            if n_seen <= out.len() {
                out[0] = ALL_POSITIONS;
                continue;
            }
            let score = |position: usize| -> f32 {
                let key = key(keys, batch, span, position, dim);
                let queries = qkv[row].chunks_exact(dim).zip(weights[row]);
                queries.map(|(query, weight)| weight * dot(query, key).max(0.0)).sum()
            };
            let scores: Vec<f32> = (0..n_seen).map(score).collect();
            let mut order: Vec<usize> = (0..n_seen).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order.truncate(out.len());
            order.sort_unstable();
            out.iter_mut().zip(order).for_each(|(out, position)| *out = position as f32);
        }
    }
}

/// Attention of every token over its positions.
pub(super) fn attend(
    keys: &[f32],
    batch: &BatchInput,
    AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, ExampleBackend>,
    chosen: &Rows,
    out: &mut Rows,
) {
    let (dim, value_dim) = (shape.head_dim, shape.value_dim());
    let (qkv, chosen): (Vec<_>, Vec<_>) = (qkv.iter().collect(), chosen.iter().collect());
    let mut out: Vec<&mut [f32]> = out.iter_mut().collect();
    for span in &batch.spans {
        for i in 0..span.n_rows {
            let row = span.first_row + i;
            let positions: Vec<usize> = match chosen[row][0] == ALL_POSITIONS {
                true => (0..span.start + i + 1).collect(),
                false => chosen[row].iter().map(|position| *position as usize).collect(),
            };
            let keys: Vec<&[f32]> = positions.iter().map(|&p| key(keys, batch, span, p, dim)).collect();
            for (head, out) in out[row].chunks_exact_mut(value_dim).enumerate() {
                let query = &qkv[row][head * dim..][..dim];
                let mut weights: Vec<f32> = keys.iter().map(|key| dot(query, key) * shape.scale).collect();
                reference::softmax(&mut weights);
                let first = dim - value_dim;
                for (d, out) in out.iter_mut().enumerate() {
                    *out = weights.iter().zip(&keys).map(|(weight, key)| weight * key[first + d]).sum();
                }
            }
        }
    }
}
