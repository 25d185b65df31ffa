//! Attention on the example device, in plain loops. Does not know layers.

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::reference;
use throng_model::backend::{AttentionQueries, Columns, RelativeScores};
use throng_model::batch_input::BatchInput;

use super::{ExampleBackend, Rows};

/// Attention of every token of a batch over one layer's keys and values.
pub(super) fn attend(
    [keys, values]: &[Vec<f32>; 2],
    batch: &BatchInput,
    AttentionQueries { qkv, shape, sinks }: AttentionQueries<'_, ExampleBackend>,
    out: &mut Rows,
) {
    let (dim, width) = (shape.head_dim, shape.n_kv_heads * shape.head_dim);
    let qkv: Vec<&[f32]> = qkv.iter().collect();
    let mut out: Vec<&mut [f32]> = out.iter_mut().collect();
    for span in &batch.spans {
        for i in 0..span.n_rows {
            let (token, position) = (span.first_row + i, span.start + i);
            let first = shape.first_visible(position);
            let end = shape.end_visible(position, span.n_tokens());
            for head in 0..shape.n_heads {
                let kv_head = head * shape.n_kv_heads / shape.n_heads;
                let at = |position| {
                    let (block, slot) = batch.slot(span, position);
                    (block * BLOCK_TOKENS + slot) * width + kv_head * dim
                };
                let query = &qkv[token][head * dim..][..dim];
                let score = |position| {
                    let key = &keys[at(position)..][..dim];
                    let dot: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                    let score = dot * shape.scale;
                    shape.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let mut weights: Vec<f32> = (first..end).map(score).collect();
                weights.extend(sinks.map(|sinks| sinks[head]));
                reference::softmax(&mut weights);
                weights.truncate(end - first);
                let value_dim = shape.value_dim();
                let out = &mut out[token][head * value_dim..][..value_dim];
                out.fill(0.0);
                for (weight, position) in weights.iter().zip(first..) {
                    let value = match shape.values_in_keys {
                        None => &values[at(position)..][..dim],
                        Some(from) => &keys[at(position) + from..][..value_dim],
                    };
                    out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
                }
            }
        }
    }
}

/// Attention of every token over its whole sequence, with scores by distance.
pub(super) fn attend_relatively(
    batch: &BatchInput,
    AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, ExampleBackend>,
    relative: RelativeScores<'_, ExampleBackend>,
    out: &mut Rows,
) {
    let dim = shape.head_dim;
    let [keys, values] = [Columns::of_keys(shape).first, Columns::of_values(shape).first];
    let rows = |rows: &'_ Rows| rows.iter().map(<[f32]>::to_vec).collect::<Vec<_>>();
    let (qkv, of_queries, of_keys) = (rows(qkv), relative.of_queries.map(rows), relative.of_keys.map(rows));
    let mut out: Vec<&mut [f32]> = out.iter_mut().collect();
    for span in &batch.spans {
        for (i, head) in (0..span.n_rows).flat_map(|i| (0..shape.n_heads).map(move |head| (i, head))) {
            let query = span.first_row + i;
            let mut weights = Vec::new();
            for j in 0..span.n_rows {
                let key = span.first_row + j;
                let place = head * relative.positions.n_buckets + relative.positions.bucket(i, j);
                let mut score: f32 =
                    (0..dim).map(|d| qkv[query][head * dim + d] * qkv[key][keys + head * dim + d]).sum();
                score += of_queries.as_ref().map_or(0.0, |scores| scores[query][place]);
                score += of_keys.as_ref().map_or(0.0, |scores| scores[key][place]);
                weights.push(score * shape.scale + relative.bias.map_or(0.0, |bias| bias[place]));
            }
            reference::softmax(&mut weights);
            for d in 0..dim {
                let value = |j: usize| qkv[span.first_row + j][values + head * dim + d];
                out[query][head * dim + d] = weights.iter().enumerate().map(|(j, w)| w * value(j)).sum();
            }
        }
    }
}
