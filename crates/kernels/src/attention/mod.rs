//! Paged attention: an online softmax over KV blocks of sixteen tokens (FlashAttention, arXiv:2205.14135).
//! All query heads of a KV head share each load of its keys and values. Knows sequences only by their block
//! tables.
//!
//! A query head processes its positions in order, in splits at fixed multiples of 128 tokens: its output bits
//! depend on its own sequence only, not on the tile, the chunk, the thread or the other sequences of the
//! batch.

mod amx;
mod chosen;
mod kv;
mod kv_dtype;
mod long_context;
mod shared_prefix;
mod split_attention;
mod tiles;
mod transpose;

pub use chosen::{ALL_POSITIONS, IndexBatch, attention_at, choose_positions};
pub use kv::{BLOCK_TOKENS, KvLayer, KvShape, NewKv};
pub use kv_dtype::{KvDtype, UnknownKvDtype};
pub use shared_prefix::SharedPrefixGroups;

use std::cell::RefCell;
use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::layout::RECORD;
use crate::quant::BLOCK;
use crate::reference::AttentionShape;
use crate::simd::{Isa, TileConfig};
use crate::threads::ThreadPool;
use long_context::LongContext;
use shared_prefix::{SharedPrefixGroup, rows_of};
use split_attention::{Room, SplitAttention, TileRow};
use tiles::{Finish, QuantizeQueries, RowState, SPLIT, SPLIT_BLOCKS, TILE};

/// Maximum number of query heads that share the transposed values of a block, where values are parts of keys.
const LATENT_ROWS: usize = 32;

/// One sequence's new tokens in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuerySpan {
    /// The row of its first new token in the batch's query matrix.
    pub first_row: usize,
    /// Number of new tokens.
    pub n_rows: usize,
    /// The position of the first new token in the sequence.
    pub start: usize,
    /// Index of its first entry in the batch's concatenated block tables.
    pub first_block: usize,
}

impl QuerySpan {
    /// Number of tokens of the sequence, with those of the batch.
    pub fn n_tokens(&self) -> usize {
        self.start + self.n_rows
    }

    /// Whether its last token attends to at most `n_splits` splits.
    fn ends_within(&self, n_splits: usize) -> bool {
        self.n_tokens() <= n_splits * SPLIT
    }
}

/// The queries of a batch: the first `n_heads * head_dim` columns of a matrix with `stride` columns.
#[derive(Debug, Clone, Copy)]
pub struct QueryBatch<'a> {
    /// The matrix, one row per new token.
    pub rows: &'a [f32],
    /// Number of columns of the matrix.
    pub stride: usize,
    /// New tokens of each sequence.
    pub spans: &'a [QuerySpan],
    /// All block tables, concatenated.
    pub blocks: &'a [u32],
    /// End of each row's positions, if some rows attend to tokens after their own; empty: as the shape says.
    /// Ends do not decrease within a span.
    pub ends: &'a [u32],
    /// A further score of each head that has no value (gpt-oss, arXiv:2508.10925).
    pub sinks: Option<&'a [f32]>,
    /// Groups of these sequences that begin with the same KV blocks.
    pub shared_prefixes: &'a SharedPrefixGroups,
}

impl QueryBatch<'_> {
    /// End of the positions that the query at `position` of a span attends to.
    fn end_visible(&self, shape: &AttentionShape, span_idx: usize, position: usize) -> usize {
        let span = &self.spans[span_idx];
        match self.ends.get(span.first_row + position - span.start) {
            Some(&end) => (end as usize).clamp(position + 1, span.n_tokens()),
            None => shape.end_visible(position, span.n_tokens()),
        }
    }
}

/// Attention of every new token over its positions in its sequence, its own included; their keys and values
/// are in the cache. `out` is `[n_rows, n_heads * value_dim]`; rows that belong to no span are not written.
///
/// # Panics
/// When shapes do not match, spans overlap or are out of order, the shared-prefix groups were computed for
/// another number of spans, or a block table is too short or names a block outside the cache.
pub fn attention(
    shape: &AttentionShape,
    layer: &KvLayer,
    queries: &QueryBatch<'_>,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    check(shape, layer, queries, out.len());
    let has_values = shape.values_in_keys.is_none();
    let in_tiles = layer.shape().dtype == KvDtype::BF16 && pool.isa().has_tiles() && has_values;
    let most_rows = match () {
        () if in_tiles => amx::ROWS,
        () if has_values => TILE,
        () => LATENT_ROWS,
    };
    let tiles_of = |n_rows: usize| (n_rows * (shape.n_heads / shape.n_kv_heads)).div_ceil(most_rows);
    // A sliding window starts at another position for each token: nothing can be shared. Shared splits begin at position 0.
    let shared_prefixes = if shape.sees_all_before() && queries.ends.is_empty() {
        queries.shared_prefixes
    } else {
        const { &SharedPrefixGroups::none() }
    };
    let items_of = |span: &QuerySpan| tiles_of(span.n_rows) * shape.n_kv_heads;
    let n_items: usize = queries.spans.iter().map(items_of).sum();
    let splits_positions =
        !in_tiles && has_values && 2 * n_items <= pool.n_threads() && reaches_far(shape, queries);
    STATES.with_borrow_mut(|states| {
        if !shared_prefixes.all().is_empty() {
            let n_rows = queries.spans.last().map_or(0, |span| span.first_row + span.n_rows);
            states.resize(states.len().max(n_rows * shape.n_heads), RowState::new());
        }
        let (out, states) = (Disjoint::new(out), Disjoint::new(states));
        let call = Call { shape, layer, queries, in_tiles, isa: pool.isa(), out: &out, states: &states };
        if !shared_prefixes.all().is_empty() {
            let items_of = |group: &SharedPrefixGroup| tiles_of(group.n_rows) * shape.n_kv_heads;
            pool.for_each(shared_prefixes.all().iter().map(items_of).sum(), |item| {
                let (i, item) = locate(shared_prefixes.all().iter().map(items_of), item);
                let (group, n_tiles) =
                    (&shared_prefixes.all()[i], items_of(&shared_prefixes.all()[i]) / shape.n_kv_heads);
                let spans = shared_prefixes.members(group).iter().map(|&i| (i, &queries.spans[i]));
                let first_row = item % n_tiles * most_rows;
                ROOM.with_borrow_mut(|room| {
                    call.load_rows(rows_of(spans), item / n_tiles, first_row, most_rows, room);
                    call.attend_shared_prefix(group, room);
                });
            });
        }
        if splits_positions {
            let all = |long: &mut LongContext| long.attend(&call, shared_prefixes, most_rows, pool);
            return LONG_CONTEXT.with_borrow_mut(all);
        }
        pool.for_each(n_items, |item| {
            let (i, item) = locate(queries.spans.iter().map(items_of), item);
            let (span, n_tiles) = (&queries.spans[i], tiles_of(queries.spans[i].n_rows));
            if span.ends_within(shared_prefixes.shared_splits(i)) {
                return;
            }
            // Later tiles see more positions: they go first, so that no thread is left with a long one at the end.
            let first_row = (n_tiles - 1 - item % n_tiles) * most_rows;
            ROOM.with_borrow_mut(|room| {
                call.load_rows(
                    rows_of(std::iter::once((i, span))),
                    item / n_tiles,
                    first_row,
                    most_rows,
                    room,
                );
                call.attend_suffix(span.first_block, shared_prefixes.shared_splits(i), room);
            });
        });
    });
}

/// Whether a sequence has enough positions that they are worth splitting among threads.
fn reaches_far(shape: &AttentionShape, queries: &QueryBatch<'_>) -> bool {
    let seen = |span: &QuerySpan| span.n_tokens() - shape.first_visible(span.start);
    queries.spans.iter().any(|span| seen(span) >= long_context::MIN_TOKENS)
}

/// Splits a global item number into the index of its owner and the number within it; `n_items` lists each
/// owner's items.
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
    let same_heads = kv.n_kv_heads == shape.n_kv_heads && kv.head_dim == shape.head_dim;
    assert!(same_heads && kv.values_in_keys == shape.values_in_keys, "{shape:?} on {kv:?}");
    let reach = shape.window != Some(0) && shape.chunk != Some(0);
    assert!(shape.n_heads.is_multiple_of(shape.n_kv_heads) && reach, "{shape:?}");
    assert!(queries.sinks.is_none_or(|sinks| sinks.len() == shape.n_heads), "a sink for each head");
    assert!(
        queries.stride >= width && queries.rows.len().is_multiple_of(queries.stride),
        "query matrix shape"
    );
    assert_eq!(
        queries.shared_prefixes.n_spans_seen(),
        queries.spans.len(),
        "shared-prefix groups of another batch"
    );
    let mut free = 0;
    for span in queries.spans {
        assert!(span.first_row >= free, "spans overlap or are out of order");
        free = span.first_row + span.n_rows;
        let n_tokens = span.n_tokens();
        let table = &queries.blocks[span.first_block..][..n_tokens.div_ceil(BLOCK_TOKENS)];
        let in_use = &table[shape.first_visible(span.start) / BLOCK_TOKENS..];
        assert!(in_use.iter().all(|&b| (b as usize) < kv.n_blocks), "a block beyond the cache");
    }
    assert!(
        free * queries.stride <= queries.rows.len() && free * shape.n_heads * shape.value_dim() <= out_len,
        "rows beyond the buffers"
    );
}

thread_local! {
    /// The softmax state of each query head between the shared-prefix pass and the suffix pass.
    static STATES: RefCell<Vec<RowState>> = const { RefCell::new(Vec::new()) };
    static LONG_CONTEXT: RefCell<LongContext> = const { RefCell::new(LongContext::new()) };
    static ROOM: RefCell<Room> = const { RefCell::new(Room::new()) };
}

/// State that all work items of a call share.
struct Call<'a> {
    shape: &'a AttentionShape,
    layer: &'a KvLayer,
    queries: &'a QueryBatch<'a>,
    in_tiles: bool,
    isa: Isa,
    out: &'a Disjoint<'a, f32>,
    /// Softmax states of tokens whose first splits are computed in the shared-prefix pass.
    states: &'a Disjoint<'a, RowState>,
}

impl<'a> Call<'a> {
    /// Computes the splits that a group shares. Leaves unnormalized sums and softmax states for
    /// [`Self::attend_suffix`], or the final outputs of tokens without further positions.
    fn attend_shared_prefix(&self, group: &SharedPrefixGroup, room: &mut Room) {
        let spans = self.queries.spans;
        let attention = SplitAttention { call: self, kv_head: room.kv_head, config: TileConfig::default() };
        let table = spans[room.rows[0].span].first_block;
        for split in 0..group.n_whole() {
            attention.split(table, split * SPLIT..(split + 1) * SPLIT, room);
        }
        if group.n_splits() > group.n_whole() {
            attention.shared_split(table, group.n_whole() * SPLIT_BLOCKS..group.n_blocks, room);
        }
        let padded = self.layer.shape().padded_value_dim();
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            if spans[row.span].ends_within(group.n_splits()) {
                self.finish(row, state, sums);
            } else {
                let out = self.out_of(row);
                out.copy_from_slice(&sums[..out.len()]);
                *self.state_of(row) = *state;
            }
        }
    }

    /// The splits of one sequence after its first `shared_splits`.
    fn attend_suffix(&self, first_block: usize, shared_splits: usize, room: &mut Room) {
        let attention = SplitAttention { call: self, kv_head: room.kv_head, config: TileConfig::default() };
        let first = room.rows[0].position;
        // One sequence: the last query sees the furthest.
        let end = self.end_visible(&room.rows[room.rows.len() - 1]);
        let padded = self.layer.shape().padded_value_dim();
        if shared_splits > 0 {
            let places = room.state.iter_mut().zip(room.out.chunks_mut(padded));
            for (row, (state, sums)) in room.rows.iter().zip(places) {
                let out = self.out_of(row);
                sums[..out.len()].copy_from_slice(out);
                *state = *self.state_of(row);
            }
        }
        let begin = self.shape.first_visible(first).max(shared_splits * SPLIT);
        for split in begin / SPLIT..end.div_ceil(SPLIT) {
            attention.split(first_block, begin.max(split * SPLIT)..end.min((split + 1) * SPLIT), room);
        }
        for (row, (state, sums)) in room.rows.iter().zip(room.state.iter().zip(room.out.chunks(padded))) {
            self.finish(row, state, sums);
        }
    }

    /// End of the positions that a query head attends to.
    fn end_visible(&self, row: &TileRow) -> usize {
        self.queries.end_visible(self.shape, row.span, row.position)
    }

    /// Tokens among these that a query head attends to, counted from the first of them.
    fn visible(&self, row: &TileRow, tokens: Range<usize>) -> Range<usize> {
        let first = self.shape.first_visible(row.position).clamp(tokens.start, tokens.end);
        first - tokens.start..self.end_visible(row).clamp(first, tokens.end) - tokens.start
    }

    fn finish(&self, row: &TileRow, state: &RowState, sums: &[f32]) {
        let (out, by) = (self.out_of(row), 1.0 / state.sum);
        self.isa.run_checked(Finish { sums: &sums[..out.len()], by, out });
    }

    /// Place of a query head's output; holds its unnormalized sums between the two passes.
    fn out_of(&self, row: &TileRow) -> &'a mut [f32] {
        let dim = self.shape.value_dim();
        // SAFETY: each query head belongs to one item of each of the two passes, and the passes run one after the other.
        unsafe { self.out.part((row.row * self.shape.n_heads + row.head) * dim, dim) }
    }

    /// Softmax state of the row between the two passes.
    fn state_of(&self, row: &TileRow) -> &'a mut RowState {
        // SAFETY: a query head's state belongs to one item of each of the two passes, which run one after the other.
        unsafe { &mut self.states.part(row.row * self.shape.n_heads + row.head, 1)[0] }
    }

    /// State before the first split.
    fn first_state(&self, row: &TileRow) -> RowState {
        self.queries.sinks.map_or(RowState::new(), |sinks| RowState::of_sink(sinks[row.head]))
    }

    /// Gathers `most` query heads of one KV head, starting at number `first` of those of `rows`. Places
    /// beyond the last head are zeros.
    fn load_rows(
        &self,
        rows: impl Iterator<Item = (usize, usize, usize)>,
        kv_head: usize,
        first: usize,
        most: usize,
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
        // The vector kernels always compute a power of two of query heads.
        let n_places = if self.in_tiles { n } else { n.next_multiple_of(TILE) };
        let n_scores = if self.in_tiles { n * amx::SCORES_STRIDE } else { n_places * SPLIT };
        if room.scores.len() < n_scores {
            room.scores.resize(n_scores, 0.0);
        }
        room.out.clear();
        room.out.resize(n_places * kv.padded_value_dim(), 0.0);
        room.state.clear();
        room.state.extend(room.rows.iter().map(|row| self.first_state(row)));
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
        if kv.dtype == KvDtype::Q8_0 {
            let group_bytes = dim / BLOCK * RECORD;
            queries.records.clear();
            queries.records.resize(n.div_ceil(TILE) * group_bytes, 0);
            for first in (0..n).step_by(TILE) {
                let quantize = QuantizeQueries { queries, first, n: (n - first).min(TILE), head_dim: dim };
                // SAFETY: there is room for more query heads than the `n` that were loaded.
                unsafe { self.isa.run(quantize) };
            }
        }
    }
}
