//! Paged causal attention: flash-style running softmax over blocks of sixteen tokens (Dao et al. 2022,
//! arXiv:2205.14135), all query heads of a group sharing each load of their keys and values. Refuses to know
//! sequences beyond their block tables.
//!
//! A query row walks the positions it sees in order, in splits at fixed multiples of 256: its bits depend on its own
//! sequence only, not on the tile, the chunk or the thread it was computed in.

mod bfloat_tiles;
mod kv;
mod tiles;

pub use kv::{BLOCK_TOKENS, KvFormat, KvLayer, KvShape, NewKv};

use std::cell::RefCell;

use crate::matmul::activations::RECORD;
use crate::memory::Disjoint;
use crate::quant::BLOCK;
use crate::reference::AttentionShape;
use crate::simd::{Isa, TileConfig};
use crate::threads::ThreadPool;
use bfloat_tiles::{Parts, TileSplit};
use tiles::{QuantizeQueries, Queries, RowState, SPLIT, Scores, Softmax, TILE, Values};

/// One sequence's new tokens in a batch.
#[derive(Debug, Clone, Copy)]
pub struct QuerySpan {
    /// Its first row of queries.
    pub first_row: usize,
    /// How many rows.
    pub n_rows: usize,
    /// The position of the first row.
    pub start: usize,
    /// Where its block table begins in the batch's.
    pub first_block: usize,
}

/// The queries of a batch: `n_heads * head_dim` columns from the first on in rows of `stride`.
#[derive(Debug, Clone, Copy)]
pub struct QueryBatch<'a> {
    /// The rows.
    pub rows: &'a [f32],
    /// Columns of a row.
    pub stride: usize,
    /// The sequences.
    pub spans: &'a [QuerySpan],
    /// All block tables, one after the other.
    pub blocks: &'a [u32],
}

/// Attention of every query row over the positions of its sequence that it sees, its own included; their keys and
/// values are in the cache. `out` is `[n_rows, n_heads * head_dim]`; rows of no span are left alone.
///
/// # Panics
/// When shapes do not fit, spans share rows or are not in order, or a block table is too short or names a block beyond
/// the cache.
pub fn attention(
    shape: &AttentionShape,
    layer: &KvLayer,
    queries: &QueryBatch<'_>,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    check(shape, layer, queries, out.len());
    let group = shape.n_heads / shape.n_kv_heads;
    let in_tiles = layer.shape().format == KvFormat::BF16 && pool.isa().has_tiles();
    let rows = if in_tiles { bfloat_tiles::ROWS } else { TILE };
    let tiles_of = |span: &QuerySpan| (span.n_rows * group).div_ceil(rows);
    let n_items: usize = queries.spans.iter().map(|span| tiles_of(span) * shape.n_kv_heads).sum();
    let out = Disjoint::new(out);
    pool.for_each(n_items, |mut item| {
        for span in queries.spans {
            let n = tiles_of(span) * shape.n_kv_heads;
            if item < n {
                // Later tiles see more: they go first, so that no thread ends on a long one alone.
                let (kv_head, tile) = (item / tiles_of(span), tiles_of(span) - 1 - item % tiles_of(span));
                let first = tile * rows;
                let work =
                    Item { shape, layer, queries, span, kv_head, first, rows, in_tiles, isa: pool.isa() };
                ROOM.with_borrow_mut(|room| work.run(room, &out));
                return;
            }
            item -= n;
        }
    });
}

fn check(shape: &AttentionShape, layer: &KvLayer, queries: &QueryBatch<'_>, out_len: usize) {
    let (kv, width) = (layer.shape(), shape.n_heads * shape.head_dim);
    assert!(kv.n_kv_heads == shape.n_kv_heads && kv.head_dim == shape.head_dim, "{shape:?} on {kv:?}");
    assert!(shape.n_heads.is_multiple_of(shape.n_kv_heads) && shape.window != Some(0), "{shape:?}");
    assert!(queries.stride >= width && queries.rows.len().is_multiple_of(queries.stride), "rows of queries");
    let mut free = 0;
    for span in queries.spans {
        assert!(span.first_row >= free, "spans overlap or are out of order");
        free = span.first_row + span.n_rows;
        let n_tokens = span.start + span.n_rows;
        let table = &queries.blocks[span.first_block..][..n_tokens.div_ceil(BLOCK_TOKENS)];
        let in_use = &table[shape.first_visible(span.start) / BLOCK_TOKENS..];
        assert!(in_use.iter().all(|&b| (b as usize) < kv.n_blocks), "a block beyond the cache");
    }
    assert!(
        free * queries.stride <= queries.rows.len() && free * width <= out_len,
        "rows beyond the buffers"
    );
}

thread_local! {
    static ROOM: RefCell<Room> = const {
        let queries = Queries { floats: Vec::new(), records: Vec::new() };
        let state = Vec::new();
        RefCell::new(Room { queries, parts: Parts::new(), scores: Vec::new(), out: Vec::new(), state })
    };
}

/// A tile's intermediate values, kept by each thread.
struct Room {
    queries: Queries,
    /// For tiles.
    parts: Parts,
    /// [row][SPLIT], or rows of [`bfloat_tiles::SCORES_STRIDE`].
    scores: Vec<f32>,
    /// [row][padded_dim].
    out: Vec<f32>,
    /// Of each row.
    state: Vec<RowState>,
}

/// Some query rows (tokens times heads of a group) of one key-value head.
struct Item<'a> {
    shape: &'a AttentionShape,
    layer: &'a KvLayer,
    queries: &'a QueryBatch<'a>,
    span: &'a QuerySpan,
    kv_head: usize,
    first: usize,
    /// At most.
    rows: usize,
    in_tiles: bool,
    isa: Isa,
}

impl Item<'_> {
    fn run(&self, room: &mut Room, out: &Disjoint<'_, f32>) {
        let n = (self.span.n_rows * self.group() - self.first).min(self.rows);
        self.load_queries(n, room);
        let config = TileConfig::default();
        let (first, last) = (self.position(0), self.position(n - 1));
        let first_visible = self.shape.first_visible(first);
        for split in first_visible / SPLIT..=last / SPLIT {
            let tokens = first_visible.max(split * SPLIT)..(last + 1).min((split + 1) * SPLIT);
            match n {
                _ if self.in_tiles => self.split_in_tiles(split * SPLIT, tokens, n, room, &config),
                1 => self.split::<1>(split * SPLIT, tokens, n, room),
                2 => self.split::<2>(split * SPLIT, tokens, n, room),
                3..=4 => self.split::<4>(split * SPLIT, tokens, n, room),
                _ => self.split::<8>(split * SPLIT, tokens, n, room),
            }
        }
        let (dim, padded) = (self.shape.head_dim, self.layer.shape().padded_dim());
        for (i, state) in room.state.iter().enumerate().take(n) {
            let (row, head) = self.row_and_head(i);
            // SAFETY: a row's head belongs to one item.
            let out = unsafe { out.part((row * self.shape.n_heads + head) * dim, dim) };
            for (out, sum) in out.iter_mut().zip(&room.out[i * padded..]) {
                *out = sum / state.sum;
            }
        }
    }

    fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    fn position(&self, i: usize) -> usize {
        self.span.start + (self.first + i) / self.group()
    }

    fn row_and_head(&self, i: usize) -> (usize, usize) {
        let (group, i) = (self.group(), self.first + i);
        (self.span.first_row + i / group, self.kv_head * group + i % group)
    }

    /// Copies the tile's queries together; rows that are not there are zeros.
    fn load_queries(&self, n: usize, room: &mut Room) {
        let kv = self.layer.shape();
        let (dim, padded) = (self.shape.head_dim, kv.padded_dim());
        // The vectors' tiles write whole powers of two of rows.
        let rows = if self.in_tiles { n } else { TILE };
        let n_scores = if self.in_tiles { n * bfloat_tiles::SCORES_STRIDE } else { TILE * SPLIT };
        if room.scores.len() < n_scores {
            room.scores.resize(n_scores, 0.0);
        }
        room.out.clear();
        room.out.resize(rows * padded, 0.0);
        room.state.clear();
        room.state.resize(n, RowState { max: f32::NEG_INFINITY, sum: 0.0 });
        let queries = &mut room.queries;
        queries.floats.clear();
        queries.floats.resize(rows * padded, 0.0);
        for i in 0..n {
            let (row, head) = self.row_and_head(i);
            let q = &self.queries.rows[row * self.queries.stride + head * dim..][..dim];
            queries.floats[i * padded..][..dim].copy_from_slice(q);
        }
        if self.in_tiles {
            room.parts.set_queries(&queries.floats, dim, self.isa);
        }
        if kv.format == KvFormat::Q8_0 {
            queries.records.clear();
            queries.records.resize(dim / BLOCK * RECORD, 0);
            // SAFETY: the pool's lane is available.
            unsafe { self.isa.run(QuantizeQueries { queries, n, head_dim: dim }) };
        }
    }

    /// The part of the walk between two multiples of SPLIT: `tokens`, seen by some row of the tile.
    fn split<const T: usize>(&self, base: usize, tokens: std::ops::Range<usize>, n: usize, room: &mut Room) {
        let shape = self.layer.shape();
        let blocks = blocks_of(&tokens);
        let block = |b: usize| self.block(b);
        for b in blocks.clone() {
            let keys = self.layer.keys(block(b), self.kv_head);
            let scores = room.scores[b * BLOCK_TOKENS - base..].as_mut_ptr();
            let ahead = match b + 1 {
                next if next < blocks.end => self.layer.keys(block(next), self.kv_head),
                _ => self.layer.values(block(blocks.start), self.kv_head),
            };
            // SAFETY: the pool's lane is available; T rows of SPLIT scores lie from there on, less what is before
            // the block.
            unsafe {
                self.isa.run(Scores::<T> {
                    shape,
                    queries: &room.queries,
                    keys,
                    ahead: ahead.as_ptr(),
                    scores,
                })
            };
        }
        self.soften(&blocks, n, room, (SPLIT, base));
        for b in blocks.clone() {
            let start = b * BLOCK_TOKENS;
            let next = (b + 1).min(blocks.end - 1);
            let values = Values::<T> {
                shape,
                values: self.layer.values(block(b), self.kv_head),
                ahead: self.layer.values(block(next), self.kv_head).as_ptr(),
                first: tokens.start.saturating_sub(start),
                last: (tokens.end - start).min(BLOCK_TOKENS),
                weights: room.scores[start - base..].as_ptr(),
                out: room.out.as_mut_ptr(),
            };
            // SAFETY: the pool's lane is available; T rows of weights and of outputs.
            unsafe { self.isa.run(values) };
        }
    }

    /// The same as [`Self::split`] in tiles.
    fn split_in_tiles(
        &self,
        base: usize,
        tokens: std::ops::Range<usize>,
        n: usize,
        room: &mut Room,
        config: &TileConfig,
    ) {
        let (shape, blocks) = (self.layer.shape(), blocks_of(&tokens));
        let keys = |b: usize| self.layer.keys(self.block(b), self.kv_head);
        let values = |b: usize| self.layer.values(self.block(b), self.kv_head);
        let split = TileSplit { isa: self.isa, shape, config, n_rows: n, blocks: blocks.clone() };
        split.scores(&room.parts, &mut room.scores, |b| [keys(b), values(b)], |b| self.keys_ahead(b));
        self.soften(&blocks, n, room, (bfloat_tiles::SCORES_STRIDE, base));
        split.values(&mut room.parts, &room.scores, &mut room.out, values);
    }

    /// The keys of block `b`, which may be beyond the last: then those of the next head, which the thread is likely to walk
    /// next.
    fn keys_ahead(&self, b: usize) -> &[u8] {
        let last = (self.span.n_rows * self.group() - self.first).min(self.rows) - 1;
        let end = self.position(last) / BLOCK_TOKENS + 1;
        let first = self.shape.first_visible(self.position(0)) / BLOCK_TOKENS;
        let (b, head) = if b < end { (b, self.kv_head) } else { (first + (b - end), self.kv_head + 1) };
        let (b, head) = (b.min(end - 1), head.min(self.shape.n_kv_heads - 1));
        self.layer.keys(self.block(b), head)
    }

    /// Scores of the blocks to weights; rows of scores lie `stride` apart and begin with token `base`.
    fn soften(
        &self,
        blocks: &std::ops::Range<usize>,
        n: usize,
        room: &mut Room,
        (stride, base): (usize, usize),
    ) {
        let padded = self.layer.shape().padded_dim();
        let (from, to) = (blocks.start * BLOCK_TOKENS, blocks.end * BLOCK_TOKENS);
        for (i, state) in room.state.iter_mut().enumerate().take(n) {
            let position = self.position(i);
            let first = self.shape.first_visible(position).clamp(from, to);
            let visible = first - from..(position + 1).clamp(first, to) - from;
            let softmax = Softmax {
                scores: &mut room.scores[i * stride..][from - base..to - base],
                visible,
                scale: self.shape.scale,
                softcap: self.shape.softcap,
                state,
                out: &mut room.out[i * padded..][..padded],
            };
            // SAFETY: the pool's lane is available.
            unsafe { self.isa.run(softmax) };
        }
    }

    /// Block `b` of the sequence.
    fn block(&self, b: usize) -> u32 {
        self.queries.blocks[self.span.first_block + b]
    }
}

fn blocks_of(tokens: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    tokens.start / BLOCK_TOKENS..tokens.end.div_ceil(BLOCK_TOKENS)
}
