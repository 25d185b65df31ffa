//! Attention over positions that an indexer chooses for each query (DeepSeek sparse attention,
//! arXiv:2512.02556). A query with no more positions than would be chosen attends to all of them, by the
//! ordinary attention; the others read the chosen ones in order of position. The choice depends on a query's
//! own sequence only.

use std::cell::RefCell;
use std::ops::Range;

use super::kv::{BLOCK_TOKENS, KvLayer, KvShape};
use super::shared_prefix::SharedPrefixGroups;
use super::transpose::ValuesOfKeys;
use super::{QueryBatch, QuerySpan, attention, locate};
use crate::disjoint::Disjoint;
use crate::reference::AttentionShape;
use crate::rows::{exponentials, load_part};
use crate::simd::{CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Number of queries for which keys are read out of the order of the cache at a time.
const ROWS: usize = 8;
/// Query heads that share the keys that were read for a query.
const HEADS: usize = 16;
/// Number of keys that stay in the cache of a core while all heads are multiplied with them.
const TILE: usize = 32;

/// Number in the first column of a choice that means all positions.
pub const ALL_POSITIONS: f32 = -1.0;

/// The queries of an indexer: the score of a query at `i` and a key at `t` is the sum over its heads of
/// `weights[i][head] * max(q · k, 0)`.
#[derive(Debug, Clone, Copy)]
pub struct IndexBatch<'a> {
    /// Queries of all heads in the first columns of `stride`.
    pub rows: &'a [f32],
    /// Number of columns of the matrix.
    pub stride: usize,
    /// `[rows, n_heads]`.
    pub weights: &'a [f32],
    /// Number of the indexer's heads.
    pub n_heads: usize,
    /// New tokens of each sequence.
    pub spans: &'a [QuerySpan],
    /// All block tables, concatenated.
    pub blocks: &'a [u32],
    /// Maximum number of positions that a query attends to.
    pub n_chosen: usize,
}

/// Buffers of a thread.
#[derive(Default)]
struct Room {
    /// Keys of a block, `[16, padded dimension]`.
    block: Vec<f32>,
    /// Keys of the chosen positions, `[n_chosen, padded dimension]`.
    keys: Vec<f32>,
    /// Scores of a few rows or heads.
    scores: Vec<f32>,
    /// Positions in order of score.
    order: Vec<u32>,
}

/// Spans of the queries that attend to all positions, and those among them that begin with the same blocks.
#[derive(Default)]
struct Whole {
    spans: Vec<QuerySpan>,
    shared_prefixes: SharedPrefixGroups,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
    static WHOLE: RefCell<Whole> = RefCell::default();
}

/// Writes the positions chosen for each query to its row of `chosen`, `[rows, n_chosen]`, in increasing
/// order: those with the highest scores, of equal ones the first; or [`ALL_POSITIONS`] if the query has no
/// more positions than that.
///
/// # Panics
/// When shapes do not match or a block table is too short or names a block outside the cache.
pub fn choose_positions(queries: &IndexBatch<'_>, layer: &KvLayer, chosen: &mut [f32], pool: &ThreadPool) {
    let &IndexBatch { rows, stride, weights, n_heads, spans, n_chosen, .. } = queries;
    let shape = layer.shape();
    let n_rows = rows.len() / stride;
    assert!(rows.len() == n_rows * stride && stride >= n_heads * shape.head_dim, "index queries");
    assert!(shape.n_kv_heads == 1 && weights.len() == n_rows * n_heads, "index weights");
    assert!(n_chosen > 0 && chosen.len() == n_rows * n_chosen, "a choice a row");
    check_blocks(spans, queries.blocks, shape, n_rows);
    for span in spans {
        for row in span.first_row..span.first_row + n_whole(span, n_chosen) {
            chosen[row * n_chosen] = ALL_POSITIONS;
        }
    }
    let groups_of = |span: &QuerySpan| (span.n_rows - n_whole(span, n_chosen)).div_ceil(ROWS);
    let chosen = Disjoint::new(chosen);
    pool.for_each(spans.iter().map(groups_of).sum(), |item| {
        let (i, group) = locate(spans.iter().map(groups_of), item);
        let span = &spans[i];
        let first = n_whole(span, n_chosen) + group * ROWS;
        let rows = first..(first + ROWS).min(span.n_rows);
        ROOM.with_borrow_mut(|room| {
            pool.isa().run_checked(Score { queries, layer, span, rows: rows.clone(), room });
            let n_scores = span.n_tokens();
            for (row, scores) in rows.zip(room.scores.chunks_exact(n_scores)) {
                // SAFETY: the row belongs to one item.
                let out = unsafe { chosen.part((span.first_row + row) * n_chosen, n_chosen) };
                choose(&scores[..span.start + row + 1], &mut room.order, out);
            }
        });
    });
}

/// Number of the first queries of a span that have no more positions than would be chosen.
fn n_whole(span: &QuerySpan, n_chosen: usize) -> usize {
    n_chosen.saturating_sub(span.start).min(span.n_rows)
}

/// The positions with the highest scores, in increasing order.
fn choose(scores: &[f32], order: &mut Vec<u32>, out: &mut [f32]) {
    order.clear();
    order.extend(0..scores.len() as u32);
    let better = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    order.select_nth_unstable_by(out.len() - 1, better);
    let best = &mut order[..out.len()];
    best.sort_unstable();
    out.iter_mut().zip(best).for_each(|(out, position)| *out = *position as f32);
}

fn check_blocks(spans: &[QuerySpan], blocks: &[u32], shape: &KvShape, n_rows: usize) {
    for span in spans {
        assert!(span.first_row + span.n_rows <= n_rows, "rows beyond the buffer");
        let table = &blocks[span.first_block..][..span.n_tokens().div_ceil(BLOCK_TOKENS)];
        assert!(table.iter().all(|&block| (block as usize) < shape.n_blocks), "a block beyond the cache");
    }
}

/// The keys of a block as rows in f32.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn read_block<S: SimdIsa>(layer: &KvLayer, block: u32, out: &mut Vec<f32>) {
    let shape = KvShape { values_in_keys: Some(0), ..*layer.shape() };
    out.resize(BLOCK_TOKENS * shape.padded_dim(), 0.0);
    // SAFETY: a whole panel on both sides.
    unsafe { ValuesOfKeys { shape: &shape, keys: layer.keys(block, 0), values: out }.run::<S>() }
}

/// A product of vectors of one length, as sixteen sums side by side.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn dot<S: SimdIsa>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: parts are at most sixteen elements, and the sums have room for a vector.
    unsafe {
        let mut sum = S::splat(0.0);
        for (a, b) in a.chunks(16).zip(b.chunks(16)) {
            sum = S::fma(load_part::<S>(a), load_part::<S>(b), sum);
        }
        let mut sums = [0.0_f32; 16];
        S::store(sums.as_mut_ptr(), sum);
        sums.iter().sum()
    }
}

/// Scores of a few queries of a sequence with all keys that any of them attends to.
struct Score<'a> {
    queries: &'a IndexBatch<'a>,
    layer: &'a KvLayer,
    span: &'a QuerySpan,
    rows: Range<usize>,
    room: &'a mut Room,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Score<'_> {}

impl Kernel for Score<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { queries, layer, span, rows, room } = self;
        let (dim, padded) = (layer.shape().head_dim, layer.shape().padded_dim());
        let n_scores = span.n_tokens();
        room.scores.resize(rows.len() * n_scores, 0.0);
        let end = span.start + rows.end;
        for (b, &block) in queries.blocks[span.first_block..][..end.div_ceil(BLOCK_TOKENS)].iter().enumerate()
        {
            // SAFETY: the ISA's features are available by the caller.
            unsafe { read_block::<S>(layer, block, &mut room.block) };
            for (i, row) in rows.clone().enumerate() {
                let (position, row) = (span.start + row, span.first_row + row);
                let query = &queries.rows[row * queries.stride..][..queries.n_heads * dim];
                let weights = &queries.weights[row * queries.n_heads..][..queries.n_heads];
                for (t, key) in room.block.chunks_exact(padded).enumerate() {
                    let at = b * BLOCK_TOKENS + t;
                    if at > position {
                        break;
                    }
                    let mut score = 0.0;
                    for (query, weight) in query.chunks_exact(dim).zip(weights) {
                        // SAFETY: the ISA's features are available by the caller.
                        score += weight * unsafe { dot::<S>(query, &key[..dim]) }.max(0.0);
                    }
                    room.scores[i * n_scores + at] = score;
                }
            }
        }
    }
}

/// Attention of every query over the positions that were chosen for it, of one KV head whose values are parts
/// of its keys. `out` is `[rows, n_heads * value_dim]`.
///
/// # Panics
/// When shapes do not match or a block table is too short or names a block outside the cache.
pub fn attention_at(
    shape: &AttentionShape,
    layer: &KvLayer,
    queries: &QueryBatch<'_>,
    (chosen, n_chosen): (&[f32], usize),
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let n_rows = queries.rows.len() / queries.stride;
    assert!(shape.n_kv_heads == 1 && shape.values_in_keys.is_some() && shape.sees_all_before(), "{shape:?}");
    assert!(chosen.len() == n_rows * n_chosen && n_chosen > 0, "a choice a row");
    assert!(out.len() >= n_rows * shape.n_heads * shape.value_dim(), "rows beyond the buffer");
    assert!(queries.stride >= shape.n_heads * shape.head_dim, "query matrix shape");
    check_blocks(queries.spans, queries.blocks, layer.shape(), n_rows);
    WHOLE.with_borrow_mut(|Whole { spans, shared_prefixes }| {
        spans.clear();
        let whole = |span: &QuerySpan| QuerySpan { n_rows: n_whole(span, n_chosen), ..*span };
        spans.extend(queries.spans.iter().map(whole).filter(|span| span.n_rows > 0));
        shared_prefixes.find(spans, queries.blocks);
        attention(shape, layer, &QueryBatch { spans, shared_prefixes, ..*queries }, out, pool);
    });
    let n_groups = shape.n_heads.div_ceil(HEADS);
    let items_of = |span: &QuerySpan| (span.n_rows - n_whole(span, n_chosen)) * n_groups;
    let out = Disjoint::new(out);
    pool.for_each(queries.spans.iter().map(items_of).sum(), |item| {
        let (i, item) = locate(queries.spans.iter().map(items_of), item);
        let span = &queries.spans[i];
        let row = span.first_row + n_whole(span, n_chosen) + item / n_groups;
        let first = item % n_groups * HEADS;
        let heads = first..(first + HEADS).min(shape.n_heads);
        let positions = &chosen[row * n_chosen..][..n_chosen];
        let table = &queries.blocks[span.first_block..][..span.n_tokens().div_ceil(BLOCK_TOKENS)];
        ROOM.with_borrow_mut(|room| {
            let query = &queries.rows[row * queries.stride..][..shape.n_heads * shape.head_dim];
            let width = heads.len() * shape.value_dim();
            // SAFETY: these heads of the row belong to one item.
            let out = unsafe { out.part((row * shape.n_heads + first) * shape.value_dim(), width) };
            let query = &query[first * shape.head_dim..heads.end * shape.head_dim];
            pool.isa().run_checked(Attend { shape, layer, table, positions, query, room, out });
        });
    });
}

/// Some heads of one query over its chosen positions.
struct Attend<'a> {
    shape: &'a AttentionShape,
    layer: &'a KvLayer,
    table: &'a [u32],
    positions: &'a [f32],
    query: &'a [f32],
    room: &'a mut Room,
    out: &'a mut [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Attend<'_> {}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { shape, layer, table, positions, query, room, out } = self;
        let (dim, value_dim, n) = (shape.head_dim, shape.value_dim(), positions.len());
        let padded = layer.shape().padded_dim();
        room.keys.resize(n * padded, 0.0);
        let mut read = usize::MAX;
        for (position, key) in positions.iter().zip(room.keys.chunks_exact_mut(padded)) {
            let (b, t) = (*position as usize / BLOCK_TOKENS, *position as usize % BLOCK_TOKENS);
            if b != read {
                // SAFETY: the ISA's features are available by the caller.
                unsafe { read_block::<S>(layer, table[b], &mut room.block) };
                read = b;
            }
            key.copy_from_slice(&room.block[t * padded..][..padded]);
        }
        let n_heads = query.len() / dim;
        room.scores.resize(n_heads * n, 0.0);
        for (first, keys) in room.keys.chunks(TILE * padded).enumerate().map(|(i, k)| (i * TILE, k)) {
            for (query, scores) in query.chunks_exact(dim).zip(room.scores.chunks_exact_mut(n)) {
                for (score, key) in scores[first..].iter_mut().zip(keys.chunks_exact(padded)) {
                    // SAFETY: the ISA's features are available by the caller.
                    *score = unsafe { dot::<S>(query, &key[..dim]) } * shape.scale;
                }
            }
        }
        let mut inverses = [0.0; HEADS];
        for (scores, inverse) in room.scores.chunks_exact_mut(n).zip(&mut inverses) {
            // SAFETY: the ISA's features are available by the caller.
            *inverse = unsafe { exponentials::<S>(scores) };
        }
        out.fill(0.0);
        let from = shape.values_in_keys.unwrap_or(0);
        for (first, keys) in room.keys.chunks(TILE * padded).enumerate().map(|(i, k)| (i * TILE, k)) {
            for (out, scores) in out.chunks_exact_mut(value_dim).zip(room.scores.chunks_exact(n)) {
                for (weight, key) in scores[first..].iter().zip(keys.chunks_exact(padded)) {
                    out.iter_mut().zip(&key[from..]).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
        for (out, inverse) in out.chunks_exact_mut(value_dim).zip(inverses) {
            out.iter_mut().for_each(|out| *out *= inverse);
        }
    }
}
