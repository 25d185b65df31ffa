//! Paged causal attention: flash-style running softmax over blocks of sixteen tokens (Dao et al. 2022,
//! arXiv:2205.14135), all query heads of a group sharing each load of their keys and values. Refuses to know
//! sequences beyond their block tables.
//!
//! A query row walks the positions it sees in order, in splits at fixed multiples of 128: its bits depend on its own
//! sequence only, not on the tile, the chunk, the thread or the company it was computed in.

mod bfloat_tiles;
mod cohorts;
mod kv;
mod tiles;

pub use kv::{BLOCK_TOKENS, KvFormat, KvLayer, KvShape, NewKv};

use std::cell::RefCell;
use std::ops::Range;

use crate::matmul::activations::RECORD;
use crate::memory::Disjoint;
use crate::quant::BLOCK;
use crate::reference::AttentionShape;
use crate::simd::{Isa, TileConfig};
use crate::threads::ThreadPool;
use bfloat_tiles::{Parts, TileSplit};
use cohorts::{Cohort, Cohorts, rows_of};
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
    let in_tiles = layer.shape().format == KvFormat::BF16 && pool.isa().has_tiles();
    let most_rows = if in_tiles { bfloat_tiles::ROWS } else { TILE };
    let tiles_of = |n_rows: usize| (n_rows * (shape.n_heads / shape.n_kv_heads)).div_ceil(most_rows);
    COHORTS.with_borrow_mut(|(cohorts, states)| {
        cohorts.find(shape, queries);
        if !cohorts.all().is_empty() {
            let n_rows = queries.spans.last().map_or(0, |span| span.first_row + span.n_rows);
            states.resize(states.len().max(n_rows * shape.n_heads), RowState::new());
        }
        let (out, states) = (Disjoint::new(out), Disjoint::new(states));
        let call = Call { shape, layer, queries, in_tiles, isa: pool.isa(), out: &out, states: &states };
        if !cohorts.all().is_empty() {
            let items_of = |cohort: &Cohort| tiles_of(cohort.n_rows) * shape.n_kv_heads;
            pool.for_each(cohorts.all().iter().map(items_of).sum(), |item| {
                let (i, item) = locate(cohorts.all().iter().map(items_of), item);
                let (cohort, n_tiles) = (&cohorts.all()[i], items_of(&cohorts.all()[i]) / shape.n_kv_heads);
                let spans = cohorts.members(cohort).iter().map(|&i| &queries.spans[i]);
                let first_row = item % n_tiles * most_rows;
                ROOM.with_borrow_mut(|room| {
                    call.load_rows(rows_of(spans), item / n_tiles, (first_row, most_rows), room);
                    call.walk_together(
                        queries.spans[cohorts.members(cohort)[0]].first_block,
                        cohort.n_splits,
                        room,
                    );
                });
            });
        }
        let items_of = |span: &QuerySpan| tiles_of(span.n_rows) * shape.n_kv_heads;
        pool.for_each(queries.spans.iter().map(items_of).sum(), |item| {
            let (i, item) = locate(queries.spans.iter().map(items_of), item);
            let (span, n_tiles) = (&queries.spans[i], tiles_of(queries.spans[i].n_rows));
            // Later tiles see more: they go first, so that no thread ends on a long one alone.
            let first_row = (n_tiles - 1 - item % n_tiles) * most_rows;
            ROOM.with_borrow_mut(|room| {
                call.load_rows(rows_of(std::iter::once(span)), item / n_tiles, (first_row, most_rows), room);
                call.walk_alone(span.first_block, cohorts.walked(i), room);
            });
        });
    });
}

/// Which of those that have so many items each has item number `item`, and its number there.
fn locate(n_items: impl Iterator<Item = usize>, mut item: usize) -> (usize, usize) {
    let mut i = 0;
    for n in n_items {
        if item < n {
            break;
        }
        (i, item) = (i + 1, item - n);
    }
    (i, item)
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
    /// And the state of each head of each row, between its cohort's walk and its own.
    static COHORTS: RefCell<(Cohorts, Vec<RowState>)> = const { RefCell::new((Cohorts::new(), Vec::new())) };
    static ROOM: RefCell<Room> = const {
        let queries = Queries { floats: Vec::new(), records: Vec::new() };
        RefCell::new(Room {
            rows: Vec::new(),
            kv_head: 0,
            queries,
            parts: Parts::new(),
            scores: Vec::new(),
            out: Vec::new(),
            state: Vec::new(),
        })
    };
}

/// A tile's rows and intermediate values, kept by each thread.
struct Room {
    /// Some query rows of one key-value head.
    rows: Vec<TileRow>,
    kv_head: usize,
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

/// A head of a row of queries.
#[derive(Debug, Clone, Copy)]
struct TileRow {
    row: usize,
    head: usize,
    position: usize,
}

/// What all items of a call have in common.
struct Call<'a> {
    shape: &'a AttentionShape,
    layer: &'a KvLayer,
    queries: &'a QueryBatch<'a>,
    in_tiles: bool,
    isa: Isa,
    out: &'a Disjoint<'a, f32>,
    /// Of rows whose first splits were walked together.
    states: &'a Disjoint<'a, RowState>,
}

impl<'a> Call<'a> {
    /// The first splits of a cohort, which all of its rows see as a whole: leaves sums and states for [`Self::walk_alone`].
    fn walk_together(&self, first_block: usize, n_splits: usize, room: &mut Room) {
        let walk = Walk { call: self, kv_head: room.kv_head, first_block, config: TileConfig::default() };
        for split in 0..n_splits {
            walk.split(split * SPLIT, split * SPLIT..(split + 1) * SPLIT, room);
        }
        let padded = self.layer.shape().padded_dim();
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            let out = self.out_of(row);
            out.copy_from_slice(&sums[..out.len()]);
            *self.state_of(row) = *state;
        }
    }

    /// What is left of a span after so many splits.
    fn walk_alone(&self, first_block: usize, walked: usize, room: &mut Room) {
        let walk = Walk { call: self, kv_head: room.kv_head, first_block, config: TileConfig::default() };
        let (first, last) = (room.rows[0].position, room.rows[room.rows.len() - 1].position);
        let padded = self.layer.shape().padded_dim();
        if walked > 0 {
            let places = room.state.iter_mut().zip(room.out.chunks_mut(padded));
            for (row, (state, sums)) in room.rows.iter().zip(places) {
                let out = self.out_of(row);
                sums[..out.len()].copy_from_slice(out);
                *state = *self.state_of(row);
            }
        }
        let begin = self.shape.first_visible(first).max(walked * SPLIT);
        for split in begin / SPLIT..=last / SPLIT {
            let tokens = begin.max(split * SPLIT)..(last + 1).min((split + 1) * SPLIT);
            walk.split(split * SPLIT, tokens, room);
        }
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            self.out_of(row).iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / state.sum);
        }
    }

    /// Where a row's output goes, and its sums until then.
    fn out_of(&self, row: &TileRow) -> &'a mut [f32] {
        let dim = self.shape.head_dim;
        // SAFETY: a row's head belongs to one item of each of the two walks, which follow each other.
        unsafe { self.out.part((row.row * self.shape.n_heads + row.head) * dim, dim) }
    }

    /// Its state, if its first splits are walked together.
    fn state_of(&self, row: &TileRow) -> &'a mut RowState {
        // SAFETY: as above.
        unsafe { &mut self.states.part(row.row * self.shape.n_heads + row.head, 1)[0] }
    }

    /// Copies together the queries of the heads of a group: of `rows`, `most` from number `first` on. Rows that are not there
    /// are zeros.
    fn load_rows(
        &self,
        rows: impl Iterator<Item = (usize, usize)>,
        kv_head: usize,
        (first, most): (usize, usize),
        room: &mut Room,
    ) {
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let heads = rows.skip(first / group).flat_map(|(row, position)| {
            (kv_head * group..(kv_head + 1) * group).map(move |head| TileRow { row, head, position })
        });
        room.kv_head = kv_head;
        room.rows.clear();
        room.rows.extend(heads.skip(first % group).take(most));
        let n = room.rows.len();
        let kv = self.layer.shape();
        let (dim, padded) = (self.shape.head_dim, kv.padded_dim());
        // The vectors' tiles write whole powers of two of rows.
        let n_places = if self.in_tiles { n } else { TILE };
        let n_scores = if self.in_tiles { n * bfloat_tiles::SCORES_STRIDE } else { TILE * SPLIT };
        if room.scores.len() < n_scores {
            room.scores.resize(n_scores, 0.0);
        }
        room.out.clear();
        room.out.resize(n_places * padded, 0.0);
        room.state.clear();
        room.state.resize(n, RowState::new());
        let queries = &mut room.queries;
        queries.floats.clear();
        queries.floats.resize(n_places * padded, 0.0);
        for (row, floats) in room.rows.iter().zip(queries.floats.chunks_mut(padded)) {
            let q = &self.queries.rows[row.row * self.queries.stride + row.head * dim..][..dim];
            floats[..dim].copy_from_slice(q);
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
}

/// One tile of rows on its way over the blocks of a sequence.
struct Walk<'a> {
    call: &'a Call<'a>,
    kv_head: usize,
    /// Where the block table begins in the batch's.
    first_block: usize,
    config: TileConfig,
}

impl Walk<'_> {
    /// The part of the walk between two multiples of SPLIT: `tokens`, seen by some row of the tile.
    fn split(&self, base: usize, tokens: Range<usize>, room: &mut Room) {
        match room.rows.len() {
            _ if self.call.in_tiles => self.split_in_tiles(base, tokens, room),
            1 => self.split_in_vectors::<1>(base, tokens, room),
            2 => self.split_in_vectors::<2>(base, tokens, room),
            3..=4 => self.split_in_vectors::<4>(base, tokens, room),
            _ => self.split_in_vectors::<8>(base, tokens, room),
        }
    }

    fn split_in_vectors<const T: usize>(&self, base: usize, tokens: Range<usize>, room: &mut Room) {
        let (shape, isa) = (self.call.layer.shape(), self.call.isa);
        let blocks = blocks_of(&tokens);
        for b in blocks.clone() {
            let keys = self.keys(b);
            let scores = room.scores[b * BLOCK_TOKENS - base..].as_mut_ptr();
            let ahead = match b + 1 {
                next if next < blocks.end => self.keys(next),
                _ => self.values(blocks.start),
            };
            // SAFETY: the pool's lane is available; T rows of SPLIT scores lie from there on, less what is before
            // the block.
            unsafe {
                isa.run(Scores::<T> { shape, queries: &room.queries, keys, ahead: ahead.as_ptr(), scores })
            };
        }
        self.soften(&blocks, room, (SPLIT, base));
        for b in blocks.clone() {
            let start = b * BLOCK_TOKENS;
            let next = (b + 1).min(blocks.end - 1);
            let values = Values::<T> {
                shape,
                values: self.values(b),
                ahead: self.values(next).as_ptr(),
                first: tokens.start.saturating_sub(start),
                last: (tokens.end - start).min(BLOCK_TOKENS),
                weights: room.scores[start - base..].as_ptr(),
                out: room.out.as_mut_ptr(),
            };
            // SAFETY: the pool's lane is available; T rows of weights and of outputs.
            unsafe { isa.run(values) };
        }
    }

    fn split_in_tiles(&self, base: usize, tokens: Range<usize>, room: &mut Room) {
        let (blocks, config) = (blocks_of(&tokens), &self.config);
        let (shape, isa, n_rows) = (self.call.layer.shape(), self.call.isa, room.rows.len());
        let split = TileSplit { isa, shape, config, n_rows, blocks: blocks.clone() };
        split.scores(&room.parts, &mut room.scores, |b| [self.keys(b), self.values(b)]);
        self.soften(&blocks, room, (bfloat_tiles::SCORES_STRIDE, base));
        split.values(&mut room.parts, &room.scores, &mut room.out, |b| self.values(b));
    }

    /// Scores of the blocks to weights; rows of scores lie `stride` apart and begin with token `base`.
    fn soften(&self, blocks: &Range<usize>, room: &mut Room, (stride, base): (usize, usize)) {
        let Call { shape, layer, isa, .. } = *self.call;
        let padded = layer.shape().padded_dim();
        let (from, to) = (blocks.start * BLOCK_TOKENS, blocks.end * BLOCK_TOKENS);
        for (i, (row, state)) in room.rows.iter().zip(&mut room.state).enumerate() {
            let first = shape.first_visible(row.position).clamp(from, to);
            let visible = first - from..(row.position + 1).clamp(first, to) - from;
            let softmax = Softmax {
                scores: &mut room.scores[i * stride..][from - base..to - base],
                visible,
                scale: shape.scale,
                softcap: shape.softcap,
                state,
                out: &mut room.out[i * padded..][..padded],
            };
            // SAFETY: the pool's lane is available.
            unsafe { isa.run(softmax) };
        }
    }

    /// Block `b` of the sequence.
    fn block(&self, b: usize) -> u32 {
        self.call.queries.blocks[self.first_block + b]
    }

    fn keys(&self, b: usize) -> &[u8] {
        self.call.layer.keys(self.block(b), self.kv_head)
    }

    fn values(&self, b: usize) -> &[u8] {
        self.call.layer.values(self.block(b), self.kv_head)
    }
}

fn blocks_of(tokens: &Range<usize>) -> Range<usize> {
    tokens.start / BLOCK_TOKENS..tokens.end.div_ceil(BLOCK_TOKENS)
}
