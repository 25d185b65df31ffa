//! Attention with scores by distance in plain loops.

use throng_kernels::reference;

use super::ReferenceBackend;
use crate::backend::host_tensor::HostTensor;
use crate::backend::{AttentionQueries, Columns, RelativeScores};
use crate::batch_input::BatchInput;

/// Attention of every token over its whole sequence.
pub(super) fn attend(
    batch: &BatchInput,
    AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, ReferenceBackend>,
    relative: RelativeScores<'_, ReferenceBackend>,
    out: &mut HostTensor,
) {
    let (n_heads, dim, n_buckets) = (shape.n_heads, shape.head_dim, relative.positions.n_buckets);
    let (keys, values) = (Columns::of_keys(shape).first, Columns::of_values(shape).first);
    for span in &batch.spans {
        let rows = span.first_row..span.first_row + span.n_rows;
        for (i, query_row) in rows.clone().enumerate() {
            for head in 0..n_heads {
                let query = &qkv.row(query_row)[head * dim..][..dim];
                let score = |(j, key_row): (usize, usize)| {
                    let key = &qkv.row(key_row)[keys + head * dim..][..dim];
                    let dot: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                    let place = head * n_buckets + relative.positions.bucket(i, j);
                    let of_query = relative.of_queries.map_or(0.0, |scores| scores.row(query_row)[place]);
                    let of_key = relative.of_keys.map_or(0.0, |scores| scores.row(key_row)[place]);
                    (dot + of_query + of_key) * shape.scale + relative.bias.map_or(0.0, |bias| bias[place])
                };
                let mut weights: Vec<f32> = rows.clone().enumerate().map(score).collect();
                reference::softmax(&mut weights);
                let out = &mut out.row_mut(query_row)[head * dim..][..dim];
                out.fill(0.0);
                for (weight, row) in weights.iter().zip(rows.clone()) {
                    let value = &qkv.row(row)[values + head * dim..][..dim];
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
    }
}
