//! Attention of a tile of query heads over KV blocks, one split at a time: scores, online softmax, weighted
//! values. The tile may hold heads of several sequences with a shared prefix. Does not group them.

use std::ops::Range;

use super::Call;
use super::KvDtype;
use super::amx::{self, Parts, TileSplit};
use super::kv::{BLOCK_TOKENS, KvShape};
use super::tiles::{Queries, RowState, SPLIT, Scores, Softmax, TILE, Values};
use super::transpose::ValuesOfKeys;
use crate::simd::{Isa, TileConfig};

/// A tile's query heads and intermediate values; one for each thread, reused.
pub(super) struct Room {
    /// Query heads that read one KV head.
    pub(super) rows: Vec<TileRow>,
    pub(super) kv_head: usize,
    pub(super) queries: Queries,
    /// bf16 parts of queries and weights, for AMX tiles.
    pub(super) parts: Parts,
    /// [query head][SPLIT], or [query head][`amx::SCORES_STRIDE`] for AMX.
    pub(super) scores: Vec<f32>,
    /// [query head][padded dimension of values].
    pub(super) out: Vec<f32>,
    /// A block's values where they are parts of keys, [token][padded dimension of values].
    pub(super) values: Vec<f32>,
    /// Softmax state of each query head.
    pub(super) state: Vec<RowState>,
}

impl Room {
    pub(super) const fn new() -> Self {
        Self {
            rows: Vec::new(),
            kv_head: 0,
            queries: Queries { floats: Vec::new(), records: Vec::new() },
            parts: Parts::new(),
            scores: Vec::new(),
            out: Vec::new(),
            values: Vec::new(),
            state: Vec::new(),
        }
    }
}

/// One query head of one new token.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileRow {
    /// Index of the token's span.
    pub(super) span: usize,
    pub(super) row: usize,
    pub(super) head: usize,
    pub(super) position: usize,
}

/// Computes one tile of query heads. `table` arguments are the index of a sequence's first entry in the
/// batch's concatenated block tables.
pub(super) struct SplitAttention<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) kv_head: usize,
    pub(super) config: TileConfig,
}

impl SplitAttention<'_> {
    /// One split, or the part of it that the tile attends to: `tokens`, between two multiples of SPLIT.
    pub(super) fn split(&self, table: usize, tokens: Range<usize>, room: &mut Room) {
        let rows = 0..room.rows.len();
        self.scores(&rows, table, &tokens, room);
        self.update_softmax(&rows, &tokens, room);
        self.values(&rows, table, &tokens, room);
    }

    /// A split whose first blocks are shared by the whole tile and whose other blocks belong to each
    /// sequence: shared scores, own scores, softmax, shared values, own values, in the order of positions
    /// that each sequence would have alone.
    pub(super) fn shared_split(&self, table: usize, shared: Range<usize>, room: &mut Room) {
        let spans = self.call.queries.spans;
        let shared = shared.start * BLOCK_TOKENS..shared.end * BLOCK_TOKENS;
        let end_of = |rows: &Range<usize>, room: &Room| {
            (room.rows[rows.end - 1].position + 1).min(shared.start + SPLIT)
        };
        let all = 0..room.rows.len();
        self.scores(&all, table, &shared, room);
        let mut next = 0;
        while let Some(rows) = rows_of_span(&room.rows, next) {
            let end = end_of(&rows, room);
            self.scores(&rows, spans[room.rows[next].span].first_block, &(shared.end..end), room);
            self.update_softmax(&rows, &(shared.start..end), room);
            next = rows.end;
        }
        self.values(&all, table, &shared, room);
        next = 0;
        while let Some(rows) = rows_of_span(&room.rows, next) {
            let end = end_of(&rows, room);
            self.values(&rows, spans[room.rows[next].span].first_block, &(shared.end..end), room);
            next = rows.end;
        }
    }

    /// `q · k` of some query heads for tokens of one split.
    pub(super) fn scores(&self, rows: &Range<usize>, table: usize, tokens: &Range<usize>, room: &mut Room) {
        if self.call.in_tiles {
            return self
                .tile_split(rows, tokens)
                .scores(&room.parts, &mut room.scores, |b| [self.keys(table, b), self.values_of(table, b)]);
        }
        each_tile(rows, room.rows.len(), self.call.isa.tile_tokens(), |first, n| match n {
            1 => self.vector_scores::<1>(first, table, tokens, room),
            2 => self.vector_scores::<2>(first, table, tokens, room),
            4 => self.vector_scores::<4>(first, table, tokens, room),
            _ => self.vector_scores::<8>(first, table, tokens, room),
        });
    }

    fn vector_scores<const T: usize>(
        &self,
        first: usize,
        table: usize,
        tokens: &Range<usize>,
        room: &mut Room,
    ) {
        let (shape, queries, blocks) = (self.call.layer.shape(), &room.queries, blocks_of(tokens));
        for b in blocks.clone() {
            let keys = self.keys(table, b);
            let ahead = match b + 1 {
                next if next < blocks.end => self.keys(table, next),
                _ if shape.values_in_keys.is_some() => keys,
                _ => self.values_of(table, blocks.start),
            };
            let scores = room.scores[first * SPLIT + b * BLOCK_TOKENS % SPLIT..].as_mut_ptr();
            // SAFETY: from there on lie T rows of SPLIT scores, less those before the block.
            unsafe {
                self.call.isa.run(Scores::<T> { shape, queries, first, keys, ahead: ahead.as_ptr(), scores })
            };
        }
    }

    /// Adds the weighted values of tokens of one split to the sums of some query heads.
    fn values(&self, rows: &Range<usize>, table: usize, tokens: &Range<usize>, room: &mut Room) {
        if self.call.in_tiles {
            return self
                .tile_split(rows, tokens)
                .values(&mut room.parts, &room.scores, &mut room.out, |b| self.values_of(table, b));
        }
        if self.call.shape.values_in_keys.is_some() {
            return self.values_in_keys(rows, table, tokens, room);
        }
        let shape = self.call.layer.shape();
        self.each_values_tile(rows, shape, tokens, |b| self.values_of(table, b), room);
    }

    /// Adds the values of a span if they are parts of keys: those of each block are transposed once for all
    /// query heads.
    fn values_in_keys(&self, rows: &Range<usize>, table: usize, tokens: &Range<usize>, room: &mut Room) {
        let stored = self.call.layer.shape();
        let shape =
            KvShape { head_dim: stored.value_dim(), dtype: KvDtype::F32, values_in_keys: None, ..*stored };
        let mut values = std::mem::take(&mut room.values);
        values.resize(shape.panel_bytes() / 4, 0.0);
        for b in blocks_of(tokens) {
            let of_block = tokens.start.max(b * BLOCK_TOKENS)..tokens.end.min((b + 1) * BLOCK_TOKENS);
            let keys = self.keys(table, b);
            // SAFETY: a whole panel on both sides.
            unsafe { self.call.isa.run(ValuesOfKeys { shape: stored, keys, values: &mut values }) };
            self.each_values_tile(rows, &shape, &of_block, |_| bytemuck::cast_slice(&values), room);
        }
        room.values = values;
    }

    fn each_values_tile<'v>(
        &self,
        rows: &Range<usize>,
        shape: &KvShape,
        tokens: &Range<usize>,
        panel: impl Fn(usize) -> &'v [u8],
        room: &mut Room,
    ) {
        let mut sums = Sums {
            isa: self.call.isa,
            shape,
            tokens,
            dims: &(0..shape.padded_dim()),
            weights: &room.scores,
            out: &mut room.out,
        };
        sums.add(rows, room.rows.len(), &panel);
    }

    /// Adds the weighted values of tokens of one split to some dimensions of the sums of `n_rows` query
    /// heads: `weights` are `[query head][SPLIT]`, `out` is `[query head][padded dimension]`, for whole
    /// register tiles of query heads.
    pub(super) fn values_of_dims(
        &self,
        n_rows: usize,
        table: usize,
        tokens: &Range<usize>,
        dims: &Range<usize>,
        weights: &[f32],
        out: &mut [f32],
    ) {
        let mut sums =
            Sums { isa: self.call.isa, shape: self.call.layer.shape(), tokens, dims, weights, out };
        sums.add(&(0..n_rows), n_rows, &|b| self.values_of(table, b));
    }

    fn tile_split(&self, rows: &Range<usize>, tokens: &Range<usize>) -> TileSplit<'_> {
        let (shape, isa, config) = (self.call.layer.shape(), self.call.isa, &self.config);
        TileSplit { isa, shape, config, rows: rows.clone(), blocks: blocks_of(tokens) }
    }

    /// Online softmax: turns the scores of some query heads for tokens of one split into weights.
    fn update_softmax(&self, rows: &Range<usize>, tokens: &Range<usize>, room: &mut Room) {
        let Call { shape, layer, isa, in_tiles, .. } = *self.call;
        let padded = layer.shape().padded_value_dim();
        let stride = if in_tiles { amx::SCORES_STRIDE } else { SPLIT };
        let blocks = blocks_of(tokens);
        let (from, to) = (blocks.start * BLOCK_TOKENS, blocks.end * BLOCK_TOKENS);
        for i in rows.clone() {
            let row = &room.rows[i];
            let visible = self.call.visible(row, from..to);
            let softmax = Softmax {
                scores: &mut room.scores[i * stride + from % SPLIT..][..to - from],
                visible,
                scale: shape.scale,
                softcap: shape.softcap,
                state: &mut room.state[i],
                out: &mut room.out[i * padded..][..padded],
            };
            isa.run_checked(softmax);
        }
    }

    /// Block `b` of the sequence whose table starts at `table`.
    fn block(&self, table: usize, b: usize) -> u32 {
        self.call.queries.blocks[table + b]
    }

    fn keys(&self, table: usize, b: usize) -> &[u8] {
        self.call.layer.keys(self.block(table, b), self.kv_head)
    }

    fn values_of(&self, table: usize, b: usize) -> &[u8] {
        self.call.layer.values(self.block(table, b), self.kv_head)
    }
}

/// Sums to which the weighted values of tokens of one split are added.
struct Sums<'a> {
    isa: Isa,
    shape: &'a KvShape,
    tokens: &'a Range<usize>,
    dims: &'a Range<usize>,
    /// [query head][SPLIT].
    weights: &'a [f32],
    /// [query head][padded dimension].
    out: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the weighted values for `rows` out of `n_rows` query heads. `panel(b)` are the values of block
    /// `b`.
    fn add<'v>(&mut self, rows: &Range<usize>, n_rows: usize, panel: &impl Fn(usize) -> &'v [u8]) {
        each_tile(rows, n_rows, self.isa.tile_tokens(), |first, n| match n {
            1 => self.add_tile::<1>(first, panel),
            2 => self.add_tile::<2>(first, panel),
            4 => self.add_tile::<4>(first, panel),
            _ => self.add_tile::<8>(first, panel),
        });
    }

    /// Adds the weighted values for a register tile of query heads from number `first` on.
    fn add_tile<'v, const T: usize>(&mut self, first: usize, panel: &impl Fn(usize) -> &'v [u8]) {
        let (shape, tokens, blocks) = (self.shape, self.tokens, blocks_of(self.tokens));
        for b in blocks.clone() {
            let start = b * BLOCK_TOKENS;
            let next = (b + 1).min(blocks.end - 1);
            let values = Values::<T> {
                shape,
                values: panel(b),
                ahead: panel(next).as_ptr(),
                first: tokens.start.saturating_sub(start),
                last: (tokens.end - start).min(BLOCK_TOKENS),
                dims: self.dims.clone(),
                weights: self.weights[first * SPLIT + start % SPLIT..].as_ptr(),
                out: self.out[first * shape.padded_dim()..].as_mut_ptr(),
            };
            // SAFETY: T rows of weights and of outputs.
            unsafe { self.isa.run(values) };
        }
    }
}

/// Calls `take(first, size)` for register tiles that cover `rows` out of `n_rows` query heads, at most `most`
/// a tile. A tile's size is a power of two. If `rows` are all of the heads, the last tile may extend past
/// them into padding; otherwise tiles are sized to end exactly at the end of `rows`.
fn each_tile(rows: &Range<usize>, n_rows: usize, most: usize, mut take: impl FnMut(usize, usize)) {
    let are_all = *rows == (0..n_rows);
    let mut first = rows.start;
    while first < rows.end {
        // Quantized queries lie in groups of eight.
        let left = (rows.end - first).min(most).min(TILE - first % TILE);
        let n = if are_all { left.next_power_of_two() } else { 1 << left.ilog2() };
        take(first, n);
        first += n;
    }
}

/// The query heads from `first` on that belong to one span; `None` at the end.
fn rows_of_span(rows: &[TileRow], first: usize) -> Option<Range<usize>> {
    let span = rows.get(first)?.span;
    let n = rows[first..].iter().take_while(|row| row.span == span).count();
    Some(first..first + n)
}

pub(super) fn blocks_of(tokens: &Range<usize>) -> Range<usize> {
    tokens.start / BLOCK_TOKENS..tokens.end.div_ceil(BLOCK_TOKENS)
}
