//! Attention in AMX tiles over keys and values in bf16. Queries and softmax weights are split into two bf16
//! parts (high and remainder), so that only keys and values are rounded. Does not know masks and block
//! tables.
//!
//! Each output is one chain of additions, 32 dimensions or one block of tokens after the other, for any set
//! of query heads in the tile: positions that a query does not attend to have the weight zero.

use std::ops::Range;

use throng_os::memory::AlignedBytes;

use super::kv::{BLOCK_TOKENS, KEY_STEP, KvShape, VALUE_STEP};
use super::tiles::{SPLIT, SPLIT_BLOCKS};
use crate::quant::BLOCK;
use crate::simd::{
    AmxIsa, AmxKernel, CheckedKernel, Isa, Kernel, KeyRun, SimdIsa, TileConfig, ValueRun, prefetch_bytes,
};

/// Number of query heads of a work item.
pub(super) const ROWS: usize = 64;
/// Number of query heads of an AMX tile.
const TILE_ROWS: usize = 16;
/// Elements from one query head's scores to the next's: not a power of two, so that they do not map to the
/// same L1 sets.
pub(super) const SCORES_STRIDE: usize = SPLIT + 16;
/// Bytes of 32 dimensions of a tile of queries, in two parts.
const QUERY_STEP: usize = 2 * TILE_ROWS * BLOCK * 2;
/// Bytes of a block of a tile of weights, in two parts.
const WEIGHT_STEP: usize = 2 * TILE_ROWS * BLOCK_TOKENS * 2;

/// Buffers for queries and weights in two bf16 parts; one for each thread, reused.
pub(super) struct Parts {
    /// [tile][32 dimensions].
    queries: Option<AlignedBytes>,
    /// [tile][block].
    weights: Option<AlignedBytes>,
}

impl Parts {
    pub(super) const fn new() -> Self {
        Self { queries: None, weights: None }
    }

    /// Splits queries `[n][dim]` into two bf16 parts.
    pub(super) fn set_queries(&mut self, rows: &[f32], dim: usize, isa: Isa) {
        let n_tiles = (rows.len() / dim).div_ceil(TILE_ROWS);
        let out = AlignedBytes::at_least(&mut self.queries, n_tiles * dim / BLOCK * QUERY_STEP);
        isa.run_amx_checked(SplitQueries { rows, dim, out });
    }
}

/// Query heads that read one KV head, over the blocks of one split.
pub(super) struct TileSplit<'a> {
    pub(super) isa: Isa,
    pub(super) shape: &'a KvShape,
    pub(super) config: &'a TileConfig,
    pub(super) rows: Range<usize>,
    /// Block indices within the sequence.
    pub(super) blocks: Range<usize>,
}

impl TileSplit<'_> {
    /// `scores[query head][token] = q · k` for all tokens of the blocks; `scores` start at the split's first
    /// token. `panels` returns a block's keys and values.
    pub(super) fn scores<'k>(
        &self,
        parts: &Parts,
        scores: &mut [f32],
        panels: impl Fn(usize) -> [&'k [u8]; 2],
    ) {
        let n_steps = self.shape.head_dim / BLOCK;
        let queries = parts.queries.as_ref().expect("queries were set").as_slice();
        assert!(scores.len() >= self.rows.end * SCORES_STRIDE);
        for first in self.blocks.clone().step_by(2) {
            let n = (self.blocks.end - first).min(2);
            let [[a, values_a], [b, values_b]] = [first, first + n - 1].map(&panels);
            let ahead = (first + 2..self.blocks.end).take(2).map(|b| panels(b)[0]);
            ahead.chain([values_a, values_b]).for_each(|panel| self.isa.run_checked(Prefetch(panel)));
            let scores = scores[first * BLOCK_TOKENS % SPLIT..].as_mut_ptr();
            self.each_group(|config_rows, [row, second]| {
                let queries = [row, second].map(|row| {
                    let n_bytes = n_steps * QUERY_STEP;
                    row_of_tile(&queries[row / TILE_ROWS * n_bytes..][..n_bytes], row)
                });
                let keys = [a, b].map(|keys| keys[..n_steps * KEY_STEP].as_ptr());
                let scores = [row, second].map(|row| scores.wrapping_add(row * SCORES_STRIDE));
                let run = KeyRun { queries, keys, n_steps, scores, stride: SCORES_STRIDE };
                // SAFETY: the ISA has tiles; rows have room for all tokens of the split.
                unsafe {
                    self.config.shape(config_rows, BLOCK / 2);
                    match (row == second, n) {
                        (true, 1) => self.isa.run_amx(KeyDots::<1, 1>(run)),
                        (true, _) => self.isa.run_amx(KeyDots::<1, 2>(run)),
                        (false, 1) => self.isa.run_amx(KeyDots::<2, 1>(run)),
                        (false, _) => self.isa.run_amx(KeyDots::<2, 2>(run)),
                    }
                }
            });
        }
    }

    /// `out[query head][d] += Σ_token weight v`; `weights` start at the split's first token and are zero for
    /// tokens that a query does not attend to. `values` returns a block's values.
    pub(super) fn values<'k>(
        &self,
        parts: &mut Parts,
        weights: &[f32],
        out: &mut [f32],
        values: impl Fn(usize) -> &'k [u8],
    ) {
        let (dim, n_blocks) = (self.shape.head_dim, self.blocks.len());
        let split = AlignedBytes::at_least(&mut parts.weights, ROWS / TILE_ROWS * SPLIT_BLOCKS * WEIGHT_STEP);
        let weights = &weights[self.blocks.start * BLOCK_TOKENS % SPLIT..];
        self.isa.run_amx_checked(SplitWeights { weights, rows: self.rows.clone(), n_blocks, out: split });
        let mut panels = [std::ptr::null(); SPLIT_BLOCKS];
        for (panel, b) in panels.iter_mut().zip(self.blocks.clone()) {
            *panel = values(b)[..dim / 16 * VALUE_STEP].as_ptr();
        }
        assert!(n_blocks <= SPLIT_BLOCKS && out.len() >= self.rows.end * dim);
        for d in (0..dim).step_by(2 * 16) {
            let out = out[d..].as_mut_ptr();
            self.each_group(|config_rows, [row, second]| {
                let weights = [row, second].map(|row| {
                    let n_bytes = n_blocks * WEIGHT_STEP;
                    row_of_tile(&split[row / TILE_ROWS * n_bytes..][..n_bytes], row)
                });
                let sums = [row, second].map(|row| out.wrapping_add(row * dim));
                let (blocks, offset) = (panels.as_ptr(), d / 16 * VALUE_STEP);
                let run = ValueRun { weights, blocks, n_blocks, offset, sums, stride: dim };
                // SAFETY: the ISA has tiles; heads are whole blocks of 32.
                unsafe {
                    self.config.shape(config_rows, BLOCK_TOKENS / 2);
                    if row == second {
                        self.isa.run_amx(ValueDots::<1>(run))
                    } else {
                        self.isa.run_amx(ValueDots::<2>(run))
                    }
                }
            });
        }
    }

    /// Calls `take(n, [first, second])` with the number of query heads in a tile and the first heads of two
    /// tiles; a single tile has `first == second`.
    fn each_group(&self, mut take: impl FnMut(usize, [usize; 2])) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let n = (self.rows.end - row).min(TILE_ROWS - row % TILE_ROWS);
            let is_pair = row.is_multiple_of(TILE_ROWS) && row + 2 * TILE_ROWS <= self.rows.end;
            let second = if is_pair { row + TILE_ROWS } else { row };
            take(n, [row, second]);
            row = second + n;
        }
    }
}

/// Address of a query head in its tile of queries or weights, where each takes one cache line.
fn row_of_tile(tile: &[u8], row: usize) -> *const u8 {
    tile[row % TILE_ROWS * 64..].as_ptr()
}

struct KeyDots<const G: usize, const P: usize>(KeyRun);

impl<const G: usize, const P: usize> AmxKernel for KeyDots<G, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        // SAFETY: the tiles are shaped and memory is valid, by the driver.
        unsafe { S::key_dots::<G, P>(&self.0) }
    }
}

struct ValueDots<const G: usize>(ValueRun);

impl<const G: usize> AmxKernel for ValueDots<G> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        // SAFETY: the tiles are shaped and memory is valid, by the driver.
        unsafe { S::value_dots::<G>(&self.0) }
    }
}

/// Prefetches the first quarter of the next panel, since a sequence's panels are scattered in memory. The
/// hardware prefetcher continues from there: prefetching the whole panel made the step half as long again.
struct Prefetch<'a>(&'a [u8]);

// SAFETY: it only prefetches.
unsafe impl CheckedKernel for Prefetch<'_> {}

impl Kernel for Prefetch<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // SAFETY: the caller guarantees the features.
        unsafe { prefetch_bytes::<S, false>(self.0.as_ptr(), self.0.len() / 4) };
    }
}

/// Splits queries into high and remainder parts; dimensions `d` and `d + 16` of 32 form a pair, as in the
/// keys.
struct SplitQueries<'a> {
    rows: &'a [f32],
    dim: usize,
    /// [tile][32 dimensions].
    out: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for SplitQueries<'_> {}

impl AmxKernel for SplitQueries<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        let n_steps = self.dim / BLOCK;
        for (i, row) in self.rows.chunks_exact(self.dim).enumerate() {
            for (step, x) in row.chunks_exact(BLOCK).enumerate() {
                let at = (i / TILE_ROWS * n_steps + step) * QUERY_STEP + i % TILE_ROWS * BLOCK * 2;
                let paired: [f32; BLOCK] = std::array::from_fn(|i| x[i / 2 + i % 2 * 16]);
                for (half, x) in paired.chunks_exact(16).enumerate() {
                    let out = self.out[at + half * 32..][..QUERY_STEP / 2 + 32].as_mut_ptr();
                    // SAFETY: sixteen elements, and room for both parts of them; the caller guarantees the features.
                    unsafe {
                        S::store_split(out.cast(), out.add(QUERY_STEP / 2).cast(), S::load(x.as_ptr()))
                    };
                }
            }
        }
    }
}

/// Splits the weights of some query heads, [`SCORES_STRIDE`] apart, into high and remainder parts, block by
/// block.
struct SplitWeights<'a> {
    weights: &'a [f32],
    rows: Range<usize>,
    n_blocks: usize,
    /// [tile][block].
    out: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for SplitWeights<'_> {}

impl AmxKernel for SplitWeights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        for i in self.rows {
            let row = &self.weights[i * SCORES_STRIDE..][..self.n_blocks * BLOCK_TOKENS];
            for (b, x) in row.chunks_exact(BLOCK_TOKENS).enumerate() {
                let at = (i / TILE_ROWS * self.n_blocks + b) * WEIGHT_STEP + i % TILE_ROWS * 64;
                let out = self.out[at..][..64].as_mut_ptr().cast::<u16>();
                // SAFETY: sixteen weights, and room for both parts of them; the caller guarantees the features.
                unsafe { S::store_split(out, out.add(BLOCK_TOKENS), S::load(x.as_ptr())) };
            }
        }
    }
}
