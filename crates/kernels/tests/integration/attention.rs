//! Paged attention: compared with the reference in every KV format, and the same bits for every ISA,
//! chunking, batch and number of threads. With keys and values in bf16, AMX gives other bits than the other
//! ISAs.

use crate::support::{Random, bits, distance, is_nightly};
use throng_kernels::Isa;
use throng_kernels::attention::{
    BLOCK_TOKENS, KvDtype, KvLayer, KvShape, NewKv, QueryBatch, QuerySpan, SharedPrefixGroups, attention,
};
use throng_kernels::reference::{self, AttentionShape, PagedKv};
use throng_kernels::threads::ThreadPool;

/// A sequence's projections, one row for each token: Q, K and V side by side.
struct Sequence {
    n_tokens: usize,
    /// The number of its first tokens that it shares with the first sequence, in whole blocks.
    shared: usize,
    qkv: Vec<f32>,
    blocks: Vec<u32>,
}

struct Case {
    shape: AttentionShape,
    n_blocks: usize,
    sequences: Vec<Sequence>,
    has_sinks: bool,
}

/// Below, within and above the scores of random queries and keys.
const SINKS: [f32; 6] = [0.5, -3.0, 4.0, 0.0, 9.0, -1e30];

impl Case {
    fn new(shape: AttentionShape, lengths: &[usize], random: &mut Random) -> Self {
        let mut free: Vec<u32> = (0..lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS) as u32).sum()).collect();
        let n_blocks = free.len();
        let mut sequence = |&n_tokens: &usize| {
            let n = n_tokens.div_ceil(BLOCK_TOKENS);
            let blocks = (0..n).map(|_| free.swap_remove(random.below(free.len()))).collect();
            let qkv = random.normals(n_tokens * (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim);
            Sequence { n_tokens, shared: 0, qkv, blocks }
        };
        Self { shape, n_blocks, sequences: lengths.iter().map(&mut sequence).collect(), has_sinks: false }
    }

    fn with_sinks(self) -> Self {
        Self { has_sinks: true, ..self }
    }

    /// Makes all other sequences begin with the first one's tokens, up to the given number each.
    fn sharing(mut self, n_tokens: usize) -> Self {
        let stride = self.stride();
        let (first, others) = self.sequences.split_first_mut().expect("a sequence");
        for sequence in others {
            let shared = n_tokens.min(sequence.n_tokens - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            sequence.shared = shared;
            sequence.qkv[..shared * stride].copy_from_slice(&first.qkv[..shared * stride]);
            sequence.blocks[..shared / BLOCK_TOKENS].copy_from_slice(&first.blocks[..shared / BLOCK_TOKENS]);
        }
        self
    }

    fn stride(&self) -> usize {
        (self.shape.n_heads + 2 * self.shape.n_kv_heads) * self.shape.head_dim
    }

    fn columns(&self) -> (usize, usize) {
        let d = self.shape.head_dim;
        (self.shape.n_heads * d, (self.shape.n_heads + self.shape.n_kv_heads) * d)
    }

    fn sinks(&self) -> Option<&[f32]> {
        self.has_sinks.then(|| &SINKS[..self.shape.n_heads])
    }

    fn reference(&self) -> Vec<Vec<f32>> {
        let (width, d) =
            (self.shape.n_kv_heads * self.shape.head_dim, self.shape.n_heads * self.shape.head_dim);
        let (key_col, value_col) = self.columns();
        let mut outputs = Vec::new();
        for sequence in &self.sequences {
            let rows = || sequence.qkv.chunks(self.stride());
            let keys: Vec<f32> = rows().flat_map(|r| r[key_col..][..width].to_vec()).collect();
            let values: Vec<f32> = rows().flat_map(|r| r[value_col..][..width].to_vec()).collect();
            let table: Vec<u32> = (0..sequence.n_tokens as u32).collect();
            let kv = PagedKv {
                keys: &keys,
                values: &values,
                block_table: &table,
                block_tokens: 1,
                n_tokens: sequence.n_tokens,
            };
            let out_width = self.shape.n_heads * self.shape.value_dim();
            let mut out = vec![0.0; sequence.n_tokens * out_width];
            for (position, (q, out)) in rows().zip(out.chunks_mut(out_width)).enumerate() {
                reference::attention(&self.shape, &q[..d], self.sinks(), &kv, position, out);
            }
            outputs.push(out.split_off(sequence.shared * out_width));
        }
        outputs
    }

    /// Computes all tokens in steps; `next` returns how many tokens of a sequence the next step takes.
    fn run(&self, format: KvDtype, pool: &ThreadPool, mut next: impl FnMut(usize) -> usize) -> Vec<Vec<f32>> {
        let width = self.shape.n_heads * self.shape.value_dim();
        let kv = KvShape::of(&self.shape, self.n_blocks, format);
        let mut layer = KvLayer::new(kv).expect("there is room");
        self.poison(&mut layer, pool);
        let mut outputs: Vec<Vec<f32>> = vec![Vec::new(); self.sequences.len()];
        let (key_col, value_col) = self.columns();
        loop {
            let (mut rows, mut spans, mut blocks, mut slots, mut owners) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (i, sequence) in self.sequences.iter().enumerate() {
                let start = sequence.shared + outputs[i].len() / width;
                let n_rows = next(i).min(sequence.n_tokens - start);
                if n_rows == 0 || outputs[0].len() / width < sequence.shared {
                    continue;
                }
                let first_row = slots.len();
                spans.push(QuerySpan { first_row, n_rows, start, first_block: blocks.len() });
                rows.extend_from_slice(&sequence.qkv[start * self.stride()..][..n_rows * self.stride()]);
                slots.extend(
                    (start..start + n_rows).map(|p| {
                        sequence.blocks[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS
                    }),
                );
                blocks.extend_from_slice(&sequence.blocks);
                owners.push((i, n_rows));
            }
            let stride = self.stride();
            layer.store(&slots, NewKv { rows: &rows, stride, key_col, value_col }, pool);
            let mut out = vec![f32::NAN; slots.len() * width];
            let mut shared_prefixes = SharedPrefixGroups::default();
            shared_prefixes.find(&spans, &blocks);
            let queries = QueryBatch {
                rows: &rows,
                stride,
                spans: &spans,
                blocks: &blocks,
                ends: &[],
                sinks: self.sinks(),
                shared_prefixes: &shared_prefixes,
            };
            attention(&self.shape, &layer, &queries, &mut out, pool);
            let mut out = &out[..];
            for (i, n_rows) in owners {
                let (mine, rest) = out.split_at(n_rows * width);
                outputs[i].extend_from_slice(mine);
                out = rest;
            }
            if outputs.iter().zip(&self.sequences).all(|(o, s)| o.len() == (s.n_tokens - s.shared) * width) {
                return outputs;
            }
        }
    }

    /// Fills the cache with garbage: the earlier content of a block must not change results.
    fn poison(&self, layer: &mut KvLayer, pool: &ThreadPool) {
        let slots: Vec<usize> = (0..self.n_blocks * BLOCK_TOKENS).collect();
        let width = self.shape.n_kv_heads * self.shape.head_dim;
        let rows = vec![f32::NAN; slots.len() * width];
        layer.store(&slots, NewKv { rows: &rows, stride: width, key_col: 0, value_col: 0 }, pool);
    }
}

fn shape(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape::new(n_heads, n_kv_heads, head_dim, scale)
}

fn cases(random: &mut Random) -> Vec<Case> {
    let capped = AttentionShape { softcap: Some(20.0), ..shape(4, 2, 64) };
    let chunked = AttentionShape { chunk: Some(48), ..shape(4, 2, 32) };
    // Values are the last 64 elements of keys of 96.
    let latent = AttentionShape { values_in_keys: Some(32), ..shape(5, 1, 96) };
    let windowed = AttentionShape { window: Some(37), ..shape(6, 2, 32) };
    let without_first = AttentionShape { first_position: 1, ..shape(4, 2, 64) };
    let both_ways = AttentionShape { is_bidirectional: true, ..shape(4, 2, 64) };
    vec![
        Case::new(shape(2, 1, 64), &[1, 16, 17, 300], random),
        Case::new(shape(3, 3, 32), &[5, 270], random),
        Case::new(shape(14, 2, 64), &[40, 3, 33], random),
        Case::new(capped, &[50, 9], random),
        Case::new(windowed, &[530, 36, 38], random),
        Case::new(shape(8, 1, 128), &[90, 2], random),
        Case::new(shape(4, 2, 32), &[600, 530, 300, 700, 514], random).sharing(528),
        Case::new(shape(3, 1, 64), &[70, 66, 129, 68, 90, 300], random).sharing(64),
        Case::new(shape(2, 1, 32), &[260, 250, 241, 256, 400], random).sharing(240),
        Case::new(windowed, &[500, 530, 490], random).sharing(480),
        Case::new(without_first, &[40, 1, 300, 310], random).sharing(32),
        Case::new(chunked, &[100, 49, 48, 47], random),
        Case::new(windowed, &[530, 2], random).with_sinks(),
        Case::new(shape(4, 2, 32), &[600, 530, 300, 700, 514], random).sharing(528).with_sinks(),
        Case::new(latent, &[300, 17, 1], random),
        Case::new(AttentionShape { n_heads: 37, ..latent }, &[40, 130], random),
        Case::new(latent, &[260, 250, 241, 256, 400], random).sharing(240),
        Case::new(both_ways, &[1, 16, 300, 129], random),
        Case::new(AttentionShape { window: Some(7), ..both_ways }, &[300, 5, 140], random),
    ]
}

/// Tolerances. f32: summation order only. f16: keys and values rounded to 11 bits; beside a sink, errors that
/// all scores share do not cancel. bf16: to 8. q8_0: keys, values and queries rounded to steps of 1/127 of a
/// block's maximum, about 0.6 % of their size each, at six sigmas; over hundreds of tokens, values cancel and
/// errors do not.
#[test]
fn every_format_is_close_to_the_reference() {
    let mut random = Random(21);
    let formats = [(KvDtype::F32, 2e-5), (KvDtype::F16, 8e-3), (KvDtype::BF16, 0.06), (KvDtype::Q8_0, 0.15)];
    for case in cases(&mut random) {
        let want = case.reference();
        for (format, bound) in formats {
            for isa in Isa::available() {
                let got = case.run(format, &ThreadPool::with_isa(2, isa), |_| usize::MAX);
                for (got, want) in got.iter().zip(&want) {
                    let d = distance(got, want);
                    assert!(d <= bound, "{format:?} {:?} {}: {d}", case.shape, isa.name());
                }
            }
        }
    }
}

/// AMX takes queries and weights in two bf16 parts, sixteen bits together.
#[test]
fn a_rows_bits_depend_on_its_sequence_only() {
    let mut random = Random(22);
    for case in cases(&mut random) {
        for format in [KvDtype::F32, KvDtype::F16, KvDtype::Q8_0, KvDtype::BF16] {
            let scalar = ThreadPool::with_isa(1, Isa::SCALAR);
            let of_scalar = case.run(format, &scalar, |_| usize::MAX);
            for isa in Isa::available() {
                let of_tiles = (isa.has_tiles() && format == KvDtype::BF16).then(|| {
                    let got = case.run(format, &ThreadPool::with_isa(1, isa), |_| usize::MAX);
                    for (got, want) in got.iter().zip(&of_scalar) {
                        let d = distance(got, want);
                        assert!(d < 1e-3, "{:?}: {d}", case.shape);
                    }
                    got
                });
                let want = of_tiles.as_ref().unwrap_or(&of_scalar);
                let pool = ThreadPool::with_isa(2, isa);
                for &most in if is_nightly() { &[1, 7, 64][..] } else { &[7] } {
                    // Where later tokens are seen, all of a sequence are there at once, but not beside all others.
                    let is_whole = case.shape.is_bidirectional;
                    let next = |n: usize| if is_whole && n > 0 { usize::MAX } else { n };
                    let got = case.run(format, &pool, |_| next(random.below(most + 1)));
                    for (i, (got, want)) in got.iter().zip(want).enumerate() {
                        let same = bits(got) == bits(want);
                        assert!(
                            same,
                            "{format:?} {:?} {} up to {most}: sequence {i}",
                            case.shape,
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

/// Head sizes that are not a multiple of sixteen.
#[test]
fn head_sizes_need_not_be_multiples_of_sixteen() {
    let mut random = Random(23);
    for head_dim in [2, 8, 20, 81] {
        let case = Case::new(shape(4, 2, head_dim), &[21, 3], &mut random);
        let want = case.reference();
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(1, isa);
            for (format, bound) in [(KvDtype::F32, 2e-5), (KvDtype::F16, 5e-3)] {
                let got = case.run(format, &pool, |_| 5);
                assert!(got.iter().zip(&want).all(|(g, w)| distance(g, w) <= bound), "{head_dim} {format:?}");
            }
        }
    }
    let kv = KvShape::of(&shape(1, 1, 80), 1, KvDtype::Q8_0);
    assert!(KvLayer::new(kv).is_none(), "80 is not whole blocks of 32");
}

/// Where there are fewer KV heads than threads, positions and dimensions are split among threads.
#[test]
fn a_long_context_has_the_same_bits_on_many_threads() {
    let mut random = Random(24);
    let (few, more) = (shape(2, 1, 64), shape(6, 2, 96));
    let windowed = AttentionShape { window: Some(1100), ..few };
    let capped = AttentionShape { softcap: Some(20.0), ..few };
    let cases = [
        Case::new(few, &[1300], &mut random),
        Case::new(more, &[1290, 40], &mut random).with_sinks(),
        Case::new(windowed, &[1301], &mut random),
        Case::new(capped, &[1200, 1310], &mut random).sharing(1190),
        Case::new(AttentionShape { n_heads: 1, ..few }, &[1200, 1310, 1250], &mut random).sharing(560),
    ];
    let all = [KvDtype::F32, KvDtype::BF16, KvDtype::F16, KvDtype::Q8_0];
    for case in cases {
        for format in if is_nightly() { &all[..] } else { &all[..2] }.iter().copied() {
            // One format is enough for the slowest.
            for isa in
                Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR || format == KvDtype::F32)
            {
                let want = case.run(format, &ThreadPool::with_isa(1, isa), |_| usize::MAX);
                // The last tokens come one by one, or two by two.
                let pool = ThreadPool::with_isa(13, isa);
                let mut begun = [false; 3];
                let got = case.run(format, &pool, |i| match std::mem::replace(&mut begun[i], true) {
                    false => (case.sequences[i].n_tokens - case.sequences[i].shared).saturating_sub(5 + i),
                    true => 1 + random.below(2),
                });
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert!(
                        bits(got) == bits(want),
                        "{format:?} {:?} {}: sequence {i}",
                        case.shape,
                        isa.name()
                    );
                }
            }
        }
    }
}
