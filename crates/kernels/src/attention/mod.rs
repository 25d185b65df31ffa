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
mod walk;

pub use cohorts::Cohorts;
pub use kv::{BLOCK_TOKENS, KvFormat, KvLayer, KvShape, NewKv};

use std::cell::RefCell;

use crate::matmul::bytes::RECORD;
use crate::memory::Disjoint;
use crate::quant::BLOCK;
use crate::reference::AttentionShape;
use crate::simd::{Isa, TileConfig};
use crate::threads::ThreadPool;
use cohorts::{Cohort, rows_of};
use tiles::{Finish, QuantizeQueries, RowState, SPLIT, SPLIT_BLOCKS, TILE};
use walk::{Room, TileRow, Walk};

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

impl QuerySpan {
    /// Whether its last row sees no more than so many splits.
    fn ends_within(&self, n_splits: usize) -> bool {
        self.start + self.n_rows <= n_splits * SPLIT
    }
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
    /// Who of these sequences walks together.
    pub cohorts: &'a Cohorts,
}

/// Attention of every query row over the positions of its sequence that it sees, its own included; their keys and
/// values are in the cache. `out` is `[n_rows, n_heads * head_dim]`; rows of no span are left alone.
///
/// # Panics
/// When shapes do not fit, spans share rows or are not in order, the cohorts are not of so many spans, or a block table is
/// too short or names a block beyond the cache.
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
    // A window moves with each row, so that there is nothing to walk together.
    let cohorts = if shape.window.is_none() { queries.cohorts } else { const { &Cohorts::none() } };
    STATES.with_borrow_mut(|states| {
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
                let spans = cohorts.members(cohort).iter().map(|&i| (i, &queries.spans[i]));
                let first_row = item % n_tiles * most_rows;
                ROOM.with_borrow_mut(|room| {
                    call.load_rows(rows_of(spans), item / n_tiles, (first_row, most_rows), room);
                    call.walk_together(cohort, room);
                });
            });
        }
        let items_of = |span: &QuerySpan| tiles_of(span.n_rows) * shape.n_kv_heads;
        pool.for_each(queries.spans.iter().map(items_of).sum(), |item| {
            let (i, item) = locate(queries.spans.iter().map(items_of), item);
            let (span, n_tiles) = (&queries.spans[i], tiles_of(queries.spans[i].n_rows));
            if span.ends_within(cohorts.walked(i)) {
                return;
            }
            // Later tiles see more: they go first, so that no thread ends on a long one alone.
            let first_row = (n_tiles - 1 - item % n_tiles) * most_rows;
            ROOM.with_borrow_mut(|room| {
                call.load_rows(
                    rows_of(std::iter::once((i, span))),
                    item / n_tiles,
                    (first_row, most_rows),
                    room,
                );
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
    assert_eq!(queries.cohorts.n_spans_seen(), queries.spans.len(), "cohorts of another batch");
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
    /// The state of each head of each row, between its cohort's walk and its own.
    static STATES: RefCell<Vec<RowState>> = const { RefCell::new(Vec::new()) };
    static ROOM: RefCell<Room> = const { RefCell::new(Room::new()) };
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
    /// The first splits of a cohort: leaves sums and states for [`Self::walk_alone`], or outputs where nothing is left to do.
    fn walk_together(&self, cohort: &Cohort, room: &mut Room) {
        let spans = self.queries.spans;
        let walk = Walk { call: self, kv_head: room.kv_head, config: TileConfig::default() };
        let table = spans[room.rows[0].span].first_block;
        for split in 0..cohort.n_whole() {
            walk.split(table, split * SPLIT..(split + 1) * SPLIT, room);
        }
        if cohort.n_splits() > cohort.n_whole() {
            walk.shared_split(table, cohort.n_whole() * SPLIT_BLOCKS..cohort.n_blocks, room);
        }
        let padded = self.layer.shape().padded_dim();
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            if spans[row.span].ends_within(cohort.n_splits()) {
                self.finish(row, state, sums);
            } else {
                let out = self.out_of(row);
                out.copy_from_slice(&sums[..out.len()]);
                *self.state_of(row) = *state;
            }
        }
    }

    /// What is left of a span after so many splits.
    fn walk_alone(&self, first_block: usize, walked: usize, room: &mut Room) {
        let walk = Walk { call: self, kv_head: room.kv_head, config: TileConfig::default() };
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
            walk.split(first_block, begin.max(split * SPLIT)..(last + 1).min((split + 1) * SPLIT), room);
        }
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            self.finish(row, state, sums);
        }
    }

    fn finish(&self, row: &TileRow, state: &RowState, sums: &[f32]) {
        let (out, by) = (self.out_of(row), 1.0 / state.sum);
        // SAFETY: the pool's lane is available.
        unsafe { self.isa.run(Finish { sums: &sums[..out.len()], by, out }) };
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
        rows: impl Iterator<Item = (usize, usize, usize)>,
        kv_head: usize,
        (first, most): (usize, usize),
        room: &mut Room,
    ) {
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let heads = rows.skip(first / group).flat_map(|(span, row, position)| {
            (kv_head * group..(kv_head + 1) * group).map(move |head| TileRow { span, row, head, position })
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
