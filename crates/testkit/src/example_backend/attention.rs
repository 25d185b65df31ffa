//! Attention on the example device, in plain loops. Does not know layers.

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::reference;
use throng_model::backend::AttentionQueries;
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
