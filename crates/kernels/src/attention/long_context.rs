//! Attention over a long context where the tiles of query heads are too few for the threads: scores are split
//! over positions, the online softmax over query heads, and the weighted values over dimensions, each in a
//! fork of its own. Every sum is made in the order in which one thread makes it, so that the bits are the
//! same.

use std::ops::Range;

use super::shared_prefix::rows_of;
use super::split_attention::{SplitAttention, TileRow, blocks_of};
use super::tiles::{SPLIT, Softmax, TILE};
use super::{BLOCK_TOKENS, Call, ROOM, SharedPrefixGroups, locate};
use crate::disjoint::Disjoint;
use crate::simd::TileConfig;
use crate::threads::ThreadPool;

/// Minimum number of positions that are worth three forks.
pub(super) const MIN_TOKENS: usize = 1024;

/// Scores and factors of the tiles of a call; one for each calling thread, reused.
pub(super) struct LongContext {
    tiles: Vec<LongTile>,
    /// Scores, then weights: [split][query head][SPLIT] of each tile.
    scores: Vec<f32>,
    /// Factors by which the sums are multiplied before each split, [query head][split]; the last ones are
    /// those of the final sums.
    factors: Vec<f32>,
}

/// Query heads of one sequence and KV head.
#[derive(Clone, Copy)]
struct LongTile {
    span: usize,
    kv_head: usize,
    /// First query head among those of the sequence and KV head.
    first: usize,
    n_rows: usize,
    /// The first position that is left to compute: those before were computed with other sequences.
    begin: usize,
    end: usize,
    is_begun: bool,
    scores_at: usize,
    factors_at: usize,
}

impl LongTile {
    fn n_places(&self) -> usize {
        self.n_rows.next_multiple_of(TILE)
    }

    fn n_splits(&self) -> usize {
        self.end.div_ceil(SPLIT) - self.begin / SPLIT
    }

    /// The positions of split number `i` of the tile.
    fn tokens(&self, i: usize) -> Range<usize> {
        let split = self.begin / SPLIT + i;
        self.begin.max(split * SPLIT)..self.end.min((split + 1) * SPLIT)
    }

    fn n_scores(&self) -> usize {
        self.n_splits() * self.n_places() * SPLIT
    }

    fn n_factors(&self) -> usize {
        self.n_rows * (self.n_splits() + 1)
    }

    /// Index of a query head's factors.
    fn factors_of(&self, row: usize) -> Range<usize> {
        let n = self.n_splits() + 1;
        self.factors_at + row * n..self.factors_at + (row + 1) * n
    }
}

impl LongContext {
    pub(super) const fn new() -> Self {
        Self { tiles: Vec::new(), scores: Vec::new(), factors: Vec::new() }
    }

    /// Attends to the tokens left of every sequence after the splits that it shares, in tiles of at most
    /// `most_rows` query heads.
    pub(super) fn attend(
        &mut self,
        call: &Call<'_>,
        shared: &SharedPrefixGroups,
        most_rows: usize,
        pool: &ThreadPool,
    ) {
        self.plan(call, shared, most_rows);
        let (tiles, n) = (&self.tiles[..], self.tiles.len());
        let parts = pool.n_threads().div_ceil(n.max(1));
        {
            let scores = Disjoint::new(&mut self.scores[..]);
            pool.for_each(n * parts, |item| {
                let (tile, part) = (&tiles[item / parts], item % parts);
                let n_splits = tile.n_splits();
                let splits = part * n_splits / parts..(part + 1) * n_splits / parts;
                if !splits.is_empty() {
                    call.long_scores(tile, splits, most_rows, &scores);
                }
            });
        }
        {
            let (scores, factors) =
                (Disjoint::new(&mut self.scores[..]), Disjoint::new(&mut self.factors[..]));
            pool.for_each(tiles.iter().map(|tile| tile.n_rows).sum(), |item| {
                let (tile, row) = locate(tiles.iter().map(|tile| tile.n_rows), item);
                call.long_softmax(&tiles[tile], row, &scores, &factors);
            });
        }
        let n_vectors = call.layer.shape().padded_value_dim() / 16;
        let parts = parts.min(n_vectors);
        pool.for_each(n * parts, |item| {
            let (tile, part) = (&tiles[item / parts], item % parts);
            let dims = part * n_vectors / parts * 16..(part + 1) * n_vectors / parts * 16;
            call.long_values(tile, dims, &self.scores, &self.factors);
        });
    }

    fn plan(&mut self, call: &Call<'_>, shared: &SharedPrefixGroups, most_rows: usize) {
        self.tiles.clear();
        let (mut scores_at, mut factors_at) = (0, 0);
        let group = call.shape.n_heads / call.shape.n_kv_heads;
        for (i, span) in call.queries.spans.iter().enumerate() {
            let shared_splits = shared.shared_splits(i);
            if span.ends_within(shared_splits) {
                continue;
            }
            for kv_head in 0..call.shape.n_kv_heads {
                for first in (0..span.n_rows * group).step_by(most_rows) {
                    let n_rows = most_rows.min(span.n_rows * group - first);
                    let position = |head: usize| span.start + head / group;
                    let begin = call.shape.first_visible(position(first)).max(shared_splits * SPLIT);
                    let end = call.queries.end_visible(call.shape, i, position(first + n_rows - 1));
                    let is_begun = shared_splits > 0;
                    let tile = LongTile {
                        span: i,
                        kv_head,
                        first,
                        n_rows,
                        begin,
                        end,
                        is_begun,
                        scores_at,
                        factors_at,
                    };
                    (scores_at, factors_at) = (scores_at + tile.n_scores(), factors_at + tile.n_factors());
                    self.tiles.push(tile);
                }
            }
        }
        self.scores.resize(self.scores.len().max(scores_at), 0.0);
        self.factors.resize(self.factors.len().max(factors_at), 0.0);
    }
}

impl Call<'_> {
    /// Scores of some splits of a tile.
    fn long_scores(
        &self,
        tile: &LongTile,
        splits: Range<usize>,
        most_rows: usize,
        scores: &Disjoint<'_, f32>,
    ) {
        let span = &self.queries.spans[tile.span];
        let attention = SplitAttention { call: self, kv_head: tile.kv_head, config: TileConfig::default() };
        let n = tile.n_places() * SPLIT;
        ROOM.with_borrow_mut(|room| {
            let rows = rows_of(std::iter::once((tile.span, span)));
            self.load_rows(rows, tile.kv_head, tile.first, most_rows, room);
            for i in splits {
                attention.scores(&(0..tile.n_rows), span.first_block, &tile.tokens(i), room);
                // SAFETY: a split of a tile belongs to one work item.
                let of_split = unsafe { scores.part(tile.scores_at + i * n, n) };
                of_split.copy_from_slice(&room.scores[..n]);
            }
        });
    }

    /// Turns the scores of one query head into weights, and keeps the factors of its sums.
    fn long_softmax(
        &self,
        tile: &LongTile,
        i: usize,
        scores: &Disjoint<'_, f32>,
        factors: &Disjoint<'_, f32>,
    ) {
        let row = self.long_row(tile, i);
        let mut state = if tile.is_begun { *self.state_of(&row) } else { self.first_state(&row) };
        let at = tile.factors_of(i);
        // SAFETY: the factors and the scores of a query head belong to one work item.
        let factors = unsafe { factors.part(at.start, at.len()) };
        for (split, factor) in factors[..tile.n_splits()].iter_mut().enumerate() {
            let blocks = blocks_of(&tile.tokens(split));
            let (from, to) = (blocks.start * BLOCK_TOKENS, blocks.end * BLOCK_TOKENS);
            let at = tile.scores_at + (split * tile.n_places() + i) * SPLIT + from % SPLIT;
            // The kernel multiplies the sums so far: of ones, that leaves the factor.
            let mut ones = [1.0; 16];
            let softmax = Softmax {
                // SAFETY: the scores of a query head belong to one work item.
                scores: unsafe { scores.part(at, to - from) },
                visible: self.visible(&row, from..to),
                scale: self.shape.scale,
                softcap: self.shape.softcap,
                state: &mut state,
                out: &mut ones,
            };
            self.isa.run_checked(softmax);
            *factor = ones[0];
        }
        factors[tile.n_splits()] = 1.0 / state.sum;
    }

    /// Some dimensions of the outputs of a tile.
    fn long_values(&self, tile: &LongTile, dims: Range<usize>, scores: &[f32], factors: &[f32]) {
        let table = self.queries.spans[tile.span].first_block;
        let attention = SplitAttention { call: self, kv_head: tile.kv_head, config: TileConfig::default() };
        let (dim, padded) = (self.shape.value_dim(), self.layer.shape().padded_value_dim());
        let kept = dims.start..dims.end.min(dim);
        let out_of = |i: usize| {
            let row = self.long_row(tile, i);
            let at = (row.row * self.shape.n_heads + row.head) * dim + kept.start;
            // SAFETY: these dimensions of a query head belong to one work item.
            unsafe { self.out.part(at, kept.len()) }
        };
        ROOM.with_borrow_mut(|room| {
            room.out.clear();
            room.out.resize(tile.n_places() * padded, 0.0);
            if tile.is_begun {
                for (i, sums) in room.out.chunks_mut(padded).take(tile.n_rows).enumerate() {
                    sums[kept.clone()].copy_from_slice(out_of(i));
                }
            }
            for split in 0..tile.n_splits() {
                for (i, sums) in room.out.chunks_mut(padded).take(tile.n_rows).enumerate() {
                    let factor = factors[tile.factors_at + i * (tile.n_splits() + 1) + split];
                    if factor != 1.0 {
                        sums[dims.clone()].iter_mut().for_each(|sum| *sum *= factor);
                    }
                }
                let weights = &scores[tile.scores_at + split * tile.n_places() * SPLIT..];
                let weights = &weights[..tile.n_places() * SPLIT];
                attention.values_of_dims(
                    tile.n_rows,
                    table,
                    &tile.tokens(split),
                    &dims,
                    weights,
                    &mut room.out,
                );
            }
            for (i, sums) in room.out.chunks(padded).take(tile.n_rows).enumerate() {
                let by = factors[tile.factors_of(i).end - 1];
                std::iter::zip(out_of(i), &sums[kept.clone()]).for_each(|(out, sum)| *out = sum * by);
            }
        });
    }

    fn long_row(&self, tile: &LongTile, i: usize) -> TileRow {
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let (span, number) = (&self.queries.spans[tile.span], tile.first + i);
        let token = number / group;
        TileRow {
            span: tile.span,
            row: span.first_row + token,
            head: tile.kv_head * group + number % group,
            position: span.start + token,
        }
    }
}
