//! Attention over positions that an indexer chooses: in blocks, in chunks and beside other sequences.

use fastrand::Rng;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_model::backend::{AttentionQueries, AttentionShape, Backend, Capability, Columns, IndexQueries};
use throng_model::batch_input::{BatchInput, QuerySpan};
use throng_model::kv_cache::{KvDtype, KvLayout, KvShape};

use super::{Op, batch, buffer, check_op, download, output, random, same_bits};

/// Lengths of the sequences: fewer positions than are chosen, as many, and more.
const LENGTHS: [usize; 5] = [1, 20, 21, 47, 150];

const N_CHOSEN: usize = 20;

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    if !backends[0].has(Capability::ChosenPositions) {
        return;
    }
    let n_tokens: usize = LENGTHS.iter().sum();
    for (n_heads, head_dim, rope_dim) in [(4, 48, 16), (18, 96, 32)] {
        let shape = AttentionShape::new(n_heads, 1, head_dim, 0.2);
        let shape = AttentionShape { values_in_keys: Some(rope_dim), ..shape };
        let index = AttentionShape { values_in_keys: Some(0), ..AttentionShape::new(3, 1, 32, 1.0) };
        let op = Chosen {
            shape,
            index,
            chunk: usize::MAX,
            qkv: random(rng, n_tokens * Columns::of_keys(&shape).end()),
            index_qkv: random(rng, n_tokens * Columns::of_keys(&index).end()),
            weights: random(rng, n_tokens * index.n_heads),
        };
        check_op(backends, &op);
        let all: Vec<usize> = (0..LENGTHS.len()).collect();
        let whole = op.run(&mut backends[0], &all);
        for chunk in [1, 7, 64] {
            let cut = Chosen { chunk, ..op.clone() }.run(&mut backends[1], &all);
            assert!(same_bits(&whole, &cut), "{}: depends on the chunks", op.name());
        }
    }
}

#[derive(Clone)]
struct Chosen {
    shape: AttentionShape,
    index: AttentionShape,
    /// Maximum number of tokens of a sequence in one step.
    chunk: usize,
    /// Queries and the key of all tokens of all sequences.
    qkv: Vec<f32>,
    index_qkv: Vec<f32>,
    weights: Vec<f32>,
}

impl Chosen {
    /// The step that computes `start..start + chunk` of every sequence that is as long; tokens are rows.
    fn step(&self, items: &[usize], start: usize) -> BatchInput {
        let mut input = BatchInput::default();
        for &item in items {
            let end = LENGTHS[item].min(start.saturating_add(self.chunk));
            if end <= start {
                continue;
            }
            let first = LENGTHS[..item].iter().sum::<usize>();
            let (first_row, first_block) = (input.tokens.len(), input.blocks.len());
            input.spans.push(QuerySpan { first_row, n_rows: end - start, start, first_block });
            input.tokens.extend((first + start..first + end).map(|token| token as u32));
            input.positions.extend((start..end).map(|position| position as u32));
            // Blocks of all sequences are interleaved, in reverse order.
            let block = |i: usize| ((10 - i) * LENGTHS.len() + item) as u32;
            input.blocks.extend((0..end.div_ceil(BLOCK_TOKENS)).map(block));
        }
        input
    }
}

impl Op for Chosen {
    fn name(&self) -> String {
        format!("attention over chosen positions in chunks of {} of {:?}", self.chunk, self.shape)
    }

    fn n_items(&self) -> usize {
        LENGTHS.len()
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let n_blocks = 11 * LENGTHS.len();
        let cache_of = |shape| Some(KvShape::of(shape, n_blocks, KvDtype::F32));
        let layout = KvLayout { n_blocks, layers: vec![cache_of(&self.shape), cache_of(&self.index)] };
        let mut cache = backend.kv_cache(&layout).expect("there is memory");
        let width = self.shape.n_heads * self.shape.value_dim();
        let mut results = vec![Vec::new(); LENGTHS.len()];
        let mut start = 0;
        while start < LENGTHS[items[items.len() - 1]] {
            let input = self.step(items, start);
            let rows: Vec<usize> = input.tokens.iter().map(|&token| token as usize).collect();
            let on_device = batch(backend, &input);
            let qkv = buffer(backend, &self.qkv, Columns::of_keys(&self.shape).end(), &rows);
            let index = buffer(backend, &self.index_qkv, Columns::of_keys(&self.index).end(), &rows);
            let weights = buffer(backend, &self.weights, self.index.n_heads, &rows);
            backend.store_kv(&mut cache, 0, &on_device, &qkv, &self.shape);
            backend.store_kv(&mut cache, 1, &on_device, &index, &self.index);
            let mut chosen = output(backend, rows.len(), N_CHOSEN);
            let queries = IndexQueries { qkv: &index, weights: &weights, shape: &self.index };
            backend.choose_positions(&cache, 1, &on_device, queries, &mut chosen);
            let mut out = output(backend, rows.len(), width);
            let queries = AttentionQueries { qkv: &qkv, shape: &self.shape, sinks: None };
            backend.attention_at(&cache, 0, &on_device, queries, &chosen, &mut out);
            let found = download(backend, &mut out);
            let mut spans = input.spans.iter();
            for &item in items.iter().filter(|&&item| LENGTHS[item] > start) {
                let span = spans.next().expect("a span for each sequence");
                results[item].extend_from_slice(&found[span.first_row * width..][..span.n_rows * width]);
            }
            start = start.saturating_add(self.chunk);
        }
        results.concat()
    }

    /// Sums in another order, and another exponential function; another choice would differ by much more.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        vec![2e-5; reference.len()]
    }
}
