//! Storing keys and values and attending to them: in blocks, in chunks, beside other sequences, and in copied
//! blocks.

use fastrand::Rng;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_model::backend::{AttentionQueries, AttentionShape, Backend, BlockCopy, Columns};
use throng_model::batch_input::{BatchInput, QuerySpan};
use throng_model::kv_cache::{KvDtype, KvLayout, KvShape};

use super::{Op, batch, buffer, check_op, download, output, random, same_bits};

const PLAIN: AttentionShape = AttentionShape::new(4, 2, 32, 0.18);

/// Lengths of the sequences: within a block, at its end, over several.
const LENGTHS: [usize; 6] = [1, 5, 16, 17, 70, 150];

const LAYER: usize = 1;

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    let shapes = [
        PLAIN,
        AttentionShape { n_kv_heads: 4, head_dim: 64, ..PLAIN },
        AttentionShape { n_heads: 6, n_kv_heads: 1, head_dim: 128, ..PLAIN },
        AttentionShape { window: Some(16), ..PLAIN },
        AttentionShape { window: Some(37), softcap: Some(0.7), ..PLAIN },
        AttentionShape { softcap: Some(50.0), scale: 1.0, ..PLAIN },
        AttentionShape { first_position: 1, ..PLAIN },
        AttentionShape { head_dim: 16, ..PLAIN },
        AttentionShape { head_dim: 80, ..PLAIN },
        AttentionShape { chunk: Some(24), ..PLAIN },
        AttentionShape { n_kv_heads: 1, head_dim: 96, values_in_keys: Some(32), ..PLAIN },
    ];
    let all = shapes.map(|shape| (shape, false));
    let with_sinks = [PLAIN, AttentionShape { window: Some(37), ..PLAIN }].map(|shape| (shape, true));
    for (shape, has_sinks) in all.into_iter().chain(with_sinks) {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::BF16, KvDtype::Q8_0] {
            if dtype.bytes_of(shape.head_dim).is_none() {
                continue;
            }
            let n_tokens: usize = LENGTHS.iter().sum();
            let op = Attention {
                shape,
                dtype,
                chunk: usize::MAX,
                copies: false,
                sinks: has_sinks.then(|| random(rng, shape.n_heads)),
                qkv: random(rng, n_tokens * Columns::of_values(&shape).end()),
            };
            check_op(backends, &op);
            check_chunks(backends, &op);
            check_copies(backends, op);
        }
    }
}

/// Checks that the bits do not depend on how the sequences are cut into chunks.
fn check_chunks<B: Backend>(backends: &mut [B], op: &Attention) {
    let all: Vec<usize> = (0..LENGTHS.len()).collect();
    let whole = op.run(&mut backends[0], &all);
    for chunk in [1, 7, 64] {
        let op = Attention { chunk, qkv: op.qkv.clone(), sinks: op.sinks.clone(), ..*op };
        let cut = op.run(&mut backends[1], &all);
        assert!(same_bits(&whole, &cut), "{}: depends on the chunks", op.name());
    }
}

/// Checks that the bits stay equal when all blocks are moved between two steps.
fn check_copies<B: Backend>(backends: &mut [B], op: Attention) {
    let all: Vec<usize> = (0..LENGTHS.len()).collect();
    let stayed = op.run(&mut backends[0], &all);
    let op = Attention { chunk: 48, copies: true, ..op };
    let moved = op.run(&mut backends[2], &all);
    assert!(same_bits(&stayed, &moved), "{}: depends on copies of blocks", op.name());
}

/// Number of blocks of the cache that sequences use at a time.
const N_USED: u32 = 11 * LENGTHS.len() as u32;

struct Attention {
    shape: AttentionShape,
    dtype: KvDtype,
    /// Maximum number of tokens of a sequence in one step.
    chunk: usize,
    /// Whether all blocks are copied to the other half of the cache after each step.
    copies: bool,
    /// Attention sink of each head, if there are any.
    sinks: Option<Vec<f32>>,
    /// Queries, keys and values of all tokens of all sequences.
    qkv: Vec<f32>,
}

impl Attention {
    /// The step that computes `start..start + chunk` of every sequence that is as long; tokens are rows of
    /// `qkv`.
    fn step(&self, items: &[usize], start: usize, first_block: u32) -> BatchInput {
        let mut input = BatchInput::default();
        for &item in items {
            let end = LENGTHS[item].min(start.saturating_add(self.chunk));
            if end <= start {
                continue;
            }
            let first = LENGTHS[..item].iter().sum::<usize>();
            input.spans.push(QuerySpan {
                first_row: input.tokens.len(),
                n_rows: end - start,
                start,
                first_block: input.blocks.len(),
            });
            input.tokens.extend((first + start..first + end).map(|token| token as u32));
            input.positions.extend((start..end).map(|position| position as u32));
            // Blocks of all sequences are interleaved, in reverse order.
            let block = |i: usize| first_block + ((10 - i) * LENGTHS.len() + item) as u32;
            input.blocks.extend((0..end.div_ceil(BLOCK_TOKENS)).map(block));
        }
        input
    }
}

impl Op for Attention {
    fn name(&self) -> String {
        let Self { chunk, copies, dtype, shape, sinks, .. } = self;
        format!(
            "attention in chunks of {chunk} over {dtype}, copied: {copies}, of {shape:?}, sinks {sinks:?}"
        )
    }

    fn n_items(&self) -> usize {
        LENGTHS.len()
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let shape = &self.shape;
        let n_blocks = 2 * N_USED as usize;
        let own = KvShape::of(shape, n_blocks, self.dtype);
        // Heads differ from layer to layer, and a layer may have none.
        let other = KvShape { n_kv_heads: 3, head_dim: 64, values_in_keys: None, ..own };
        let layout = KvLayout { n_blocks, layers: vec![Some(other), Some(own), None] };
        let mut cache = backend.kv_cache(&layout).expect("there is memory");
        let sinks = self.sinks.as_ref().map(|sinks| backend.vector(sinks).expect("there is memory"));
        let width = shape.n_heads * shape.value_dim();
        let mut results = vec![Vec::new(); LENGTHS.len()];
        let (mut start, mut first_block) = (0, 0);
        while start < LENGTHS[items[items.len() - 1]] {
            let input = self.step(items, start, first_block);
            let rows: Vec<usize> = input.tokens.iter().map(|&token| token as usize).collect();
            let qkv = buffer(backend, &self.qkv, Columns::of_values(shape).end(), &rows);
            let on_device = batch(backend, &input);
            let mut out = output(backend, rows.len(), width);
            backend.store_kv(&mut cache, LAYER, &on_device, &qkv, shape);
            let queries = AttentionQueries { qkv: &qkv, shape, sinks: sinks.as_ref() };
            backend.attention(&cache, LAYER, &on_device, queries, &mut out);
            let out = download(backend, &mut out);
            let longer = items.iter().filter(|&&item| LENGTHS[item] > start);
            for (&item, span) in longer.zip(&input.spans) {
                results[item].extend_from_slice(&out[span.first_row * width..][..span.n_rows * width]);
            }
            start = start.saturating_add(self.chunk);
            if self.copies {
                let copy = |i| BlockCopy { from: first_block + i, to: N_USED - first_block + i };
                backend.copy_blocks(&mut cache, &(0..N_USED).map(copy).collect::<Vec<_>>());
                first_block = N_USED - first_block;
            }
        }
        results.concat()
    }

    /// Values are between -1 and 1. Float sums and exponentials: a few units in the last place. f16 rounds
    /// keys and values by at most 2⁻¹², bf16 by 2⁻⁹, q8_0 (queries perhaps, too) by a 254th; scores of up to
    /// 32 products move little.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        let tolerance = match self.dtype {
            KvDtype::F32 => 1e-5,
            KvDtype::F16 => 3e-3,
            KvDtype::BF16 => 2.4e-2,
            KvDtype::Q8_0 => 5e-2,
        };
        vec![tolerance; reference.len()]
    }
}
