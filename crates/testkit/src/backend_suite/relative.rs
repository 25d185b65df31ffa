//! Attention of encoders whose scores depend on the distance of two tokens: sequences alone and side by side.

use fastrand::Rng;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_model::backend::{AttentionQueries, AttentionShape, Backend, Capability, Columns, RelativeScores};
use throng_model::batch_input::{BatchInput, QuerySpan};
use throng_model::config::{RelativeKind, RelativePositions};

use super::{Op, batch, buffer, check_op, download, output, random};

/// Lengths of the sequences: shorter than the table of distances reaches, and longer.
const LENGTHS: [usize; 5] = [1, 2, 16, 23, 70];

const N_BUCKETS: usize = 10;

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    if !backends[0].has(Capability::RelativeAttention) {
        return;
    }
    let n_tokens: usize = LENGTHS.iter().sum();
    for head_dim in [8, 32, 64] {
        let is_bidirectional = true;
        let shape = AttentionShape { is_bidirectional, ..AttentionShape::new(3, 3, head_dim, 0.2) };
        for parts in 1..8 {
            let mut part = |bit: usize, n: usize| (parts & bit != 0).then(|| random(rng, n));
            let op = Relative {
                shape,
                bias: part(1, shape.n_heads * N_BUCKETS),
                of_queries: part(2, n_tokens * shape.n_heads * N_BUCKETS),
                of_keys: part(4, n_tokens * shape.n_heads * N_BUCKETS),
                qkv: random(rng, n_tokens * Columns::of_values(&shape).end()),
            };
            check_op(backends, &op);
        }
    }
}

struct Relative {
    shape: AttentionShape,
    bias: Option<Vec<f32>>,
    of_queries: Option<Vec<f32>>,
    of_keys: Option<Vec<f32>>,
    /// Queries, keys and values of all tokens of all sequences.
    qkv: Vec<f32>,
}

impl Op for Relative {
    fn name(&self) -> String {
        let parts = [&self.bias, &self.of_queries, &self.of_keys].map(Option::is_some);
        format!("attention by distance of {:?} with {parts:?}", self.shape)
    }

    fn n_items(&self) -> usize {
        LENGTHS.len()
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let shape = &self.shape;
        let (mut input, mut rows) = (BatchInput::default(), Vec::new());
        for &item in items {
            let (first, n_rows) = (LENGTHS[..item].iter().sum::<usize>(), LENGTHS[item]);
            let (first_row, first_block) = (rows.len(), input.blocks.len());
            input.spans.push(QuerySpan { first_row, n_rows, start: 0, first_block });
            input.blocks.extend((0..n_rows.div_ceil(BLOCK_TOKENS)).map(|block| block as u32));
            rows.extend(first..first + n_rows);
            input.tokens.extend((0..n_rows).map(|token| token as u32));
            input.positions.extend((0..n_rows).map(|position| position as u32));
        }
        let qkv = buffer(backend, &self.qkv, Columns::of_values(shape).end(), &rows);
        let of_rows = [&self.of_queries, &self.of_keys].map(|scores| {
            scores.as_ref().map(|scores| buffer(backend, scores, shape.n_heads * N_BUCKETS, &rows))
        });
        let bias = self.bias.as_ref().map(|bias| backend.vector(bias).expect("there is memory"));
        let bucket = |distance: i64| (distance + N_BUCKETS as i64 / 2).max(0) as usize;
        let positions = RelativePositions::new(RelativeKind::Bias, N_BUCKETS, 20, bucket);
        let [of_queries, of_keys] = of_rows.each_ref().map(Option::as_ref);
        let relative = RelativeScores { positions: &positions, bias: bias.as_ref(), of_queries, of_keys };
        let on_device = batch(backend, &input);
        let mut out = output(backend, rows.len(), shape.n_heads * shape.head_dim);
        let queries = AttentionQueries { qkv: &qkv, shape, sinks: None };
        backend.relative_attention(&on_device, queries, relative, &mut out);
        download(backend, &mut out)
    }

    /// Sums in another order, and another exponential function.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        vec![2e-5; reference.len()]
    }
}
