//! A tile of query rows walking over the blocks of a sequence, or of several that begin alike, split by split. Refuses to know
//! who walks with whom.

use std::ops::Range;

use super::Call;
use super::bfloat_tiles::{self, Parts, TileSplit};
use super::kv::BLOCK_TOKENS;
use super::tiles::{Queries, RowState, SPLIT, Scores, Softmax, Values};
use crate::simd::TileConfig;

/// A tile's rows and intermediate values, kept by each thread.
pub(super) struct Room {
    /// Some query rows of one key-value head.
    pub(super) rows: Vec<TileRow>,
    pub(super) kv_head: usize,
    pub(super) queries: Queries,
    /// For tiles.
    pub(super) parts: Parts,
    /// [row][SPLIT], or rows of [`bfloat_tiles::SCORES_STRIDE`].
    pub(super) scores: Vec<f32>,
    /// [row][padded_dim].
    pub(super) out: Vec<f32>,
    /// Of each row.
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
            state: Vec::new(),
        }
    }
}

/// A head of a row of queries.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileRow {
    /// Its span's number.
    pub(super) span: usize,
    pub(super) row: usize,
    pub(super) head: usize,
    pub(super) position: usize,
}

/// One tile of rows on its way over the blocks of a sequence, or of several that begin alike. A table is where a sequence's
/// blocks begin in the batch's.
pub(super) struct Walk<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) kv_head: usize,
    pub(super) config: TileConfig,
}

impl Walk<'_> {
    /// The part of the walk between two multiples of SPLIT: `tokens`, seen by some row of the tile.
    pub(super) fn split(&self, table: usize, tokens: Range<usize>, room: &mut Room) {
        let rows = 0..room.rows.len();
        self.scores(&rows, table, &tokens, room);
        self.soften(&rows, &tokens, room);
        self.values(&rows, table, &tokens, room);
    }

    /// A split whose first blocks are the same for all rows, and which ends with each span's own.
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
            self.soften(&rows, &(shared.start..end), room);
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

    /// Scores of some rows for tokens of one split.
    fn scores(&self, rows: &Range<usize>, table: usize, tokens: &Range<usize>, room: &mut Room) {
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
                _ => self.values_of(table, blocks.start),
            };
            let scores = room.scores[first * SPLIT + b * BLOCK_TOKENS % SPLIT..].as_mut_ptr();
            // SAFETY: the pool's lane is available; T rows of SPLIT scores lie from there on, less what is before
            // the block.
            unsafe {
                self.call.isa.run(Scores::<T> { shape, queries, first, keys, ahead: ahead.as_ptr(), scores })
            };
        }
    }

    /// What weighted values of some rows add to their sums, for tokens of one split.
    fn values(&self, rows: &Range<usize>, table: usize, tokens: &Range<usize>, room: &mut Room) {
        if self.call.in_tiles {
            return self
                .tile_split(rows, tokens)
                .values(&mut room.parts, &room.scores, &mut room.out, |b| self.values_of(table, b));
        }
        each_tile(rows, room.rows.len(), self.call.isa.tile_tokens(), |first, n| match n {
            1 => self.vector_values::<1>(first, table, tokens, room),
            2 => self.vector_values::<2>(first, table, tokens, room),
            4 => self.vector_values::<4>(first, table, tokens, room),
            _ => self.vector_values::<8>(first, table, tokens, room),
        });
    }

    fn vector_values<const T: usize>(
        &self,
        first: usize,
        table: usize,
        tokens: &Range<usize>,
        room: &mut Room,
    ) {
        let (shape, blocks) = (self.call.layer.shape(), blocks_of(tokens));
        for b in blocks.clone() {
            let start = b * BLOCK_TOKENS;
            let next = (b + 1).min(blocks.end - 1);
            let values = Values::<T> {
                shape,
                values: self.values_of(table, b),
                ahead: self.values_of(table, next).as_ptr(),
                first: tokens.start.saturating_sub(start),
                last: (tokens.end - start).min(BLOCK_TOKENS),
                weights: room.scores[first * SPLIT + start % SPLIT..].as_ptr(),
                out: room.out[first * shape.padded_dim()..].as_mut_ptr(),
            };
            // SAFETY: the pool's lane is available; T rows of weights and of outputs.
            unsafe { self.call.isa.run(values) };
        }
    }

    fn tile_split(&self, rows: &Range<usize>, tokens: &Range<usize>) -> TileSplit<'_> {
        let (shape, isa, config) = (self.call.layer.shape(), self.call.isa, &self.config);
        TileSplit { isa, shape, config, rows: rows.clone(), blocks: blocks_of(tokens) }
    }

    /// Scores of some rows to weights, for tokens of one split.
    fn soften(&self, rows: &Range<usize>, tokens: &Range<usize>, room: &mut Room) {
        let Call { shape, layer, isa, in_tiles, .. } = *self.call;
        let padded = layer.shape().padded_dim();
        let stride = if in_tiles { bfloat_tiles::SCORES_STRIDE } else { SPLIT };
        let blocks = blocks_of(tokens);
        let (from, to) = (blocks.start * BLOCK_TOKENS, blocks.end * BLOCK_TOKENS);
        for i in rows.clone() {
            let position = room.rows[i].position;
            let first = shape.first_visible(position).clamp(from, to);
            let visible = first - from..(position + 1).clamp(first, to) - from;
            let softmax = Softmax {
                scores: &mut room.scores[i * stride + from % SPLIT..][..to - from],
                visible,
                scale: shape.scale,
                softcap: shape.softcap,
                state: &mut room.state[i],
                out: &mut room.out[i * padded..][..padded],
            };
            // SAFETY: the pool's lane is available.
            unsafe { isa.run(softmax) };
        }
    }

    /// Block `b` of a sequence.
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

/// Calls `take` with the first row and the size of tiles of vectors for some of `n_rows` rows, at most `most` a tile. Tiles
/// write powers of two of rows: the last of all rows takes places where there are none as well, but of some of them there
/// are as many as it takes.
fn each_tile(rows: &Range<usize>, n_rows: usize, most: usize, mut take: impl FnMut(usize, usize)) {
    let are_all = *rows == (0..n_rows);
    let mut first = rows.start;
    while first < rows.end {
        let left = (rows.end - first).min(most);
        let n = if are_all { left.next_power_of_two() } else { 1 << left.ilog2() };
        take(first, n);
        first += n;
    }
}

/// The rows from `first` on that are of one span; `None` at the end.
fn rows_of_span(rows: &[TileRow], first: usize) -> Option<Range<usize>> {
    let span = rows.get(first)?.span;
    let n = rows[first..].iter().take_while(|row| row.span == span).count();
    Some(first..first + n)
}

fn blocks_of(tokens: &Range<usize>) -> Range<usize> {
    tokens.start / BLOCK_TOKENS..tokens.end.div_ceil(BLOCK_TOKENS)
}
