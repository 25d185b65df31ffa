//! Register tiles: up to eight tokens times the sixteen rows of one or two panels. Do not know formats and
//! threads.
//!
//! An output element is one lane of an accumulator: block after block along K, `acc += scale · dot` with an
//! exact integer dot (or a float dot summed from left to right), so its bits do not depend on the tile it was
//! in.

use super::activations::FLOAT_RECORD;
use crate::layout::{HALF_PAIR_AT, HALF_STEP, HALF_SUM_AT, PAIR_AT, RECORD, SCALE_AT, SUM_AT};
use crate::quant::{BLOCK, PANEL, Unpacked};
use crate::simd::{Kernel, PairBlock, SimdIsa, prefetch_bytes};

/// Number of tokens of the widest tile.
const MAX_TOKENS: usize = 8;
/// Number of tokens of a tile of two panels.
const PAIR_TOKENS: usize = MAX_TOKENS;

/// One register tile over a K block: `T` tokens (a divisor of sixteen) times `P` panels.
pub(crate) struct Tile<const T: usize, const P: usize> {
    pub(crate) weights: [Unpacked; P],
    /// Each half block has its own scale.
    pub(crate) halves: bool,
    /// Codes are unsigned and below 64, and mins are added; otherwise codes are value + 128.
    pub(crate) has_min: bool,
    /// Whether the weights are floats.
    pub(crate) floats: bool,
    pub(crate) n_blocks: usize,
    /// The token group's first record of the K block.
    pub(crate) x: *const u8,
    /// The first token within the group.
    pub(crate) first: usize,
    /// The outputs of each panel: T rows of sixteen, `stride` elements apart.
    pub(crate) out: [*mut f32; P],
    /// Elements from one token's outputs to the next's.
    pub(crate) stride: usize,
    /// Adds to the outputs instead of overwriting them.
    pub(crate) adds: bool,
}

impl<const T: usize, const P: usize> Kernel for Tile<T, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // SAFETY: the caller provides as many blocks, records and accumulators as the fields say.
        unsafe {
            match (self.floats, self.halves, self.has_min) {
                (true, ..) => self.float_dots::<S>(),
                (_, false, false) => self.int_dots::<S, false, false>(),
                (_, false, true) => self.int_dots::<S, false, true>(),
                (_, true, false) => self.int_dots::<S, true, false>(),
                (_, true, true) => self.int_dots::<S, true, true>(),
            }
        }
    }
}

/// A tile over codes below 64 that were not widened to value + 128; see [`SimdIsa::WIDE_IS_SLOW`].
pub(crate) struct NarrowTile<const T: usize, const P: usize>(pub(crate) Tile<T, P>);

impl<const T: usize, const P: usize> Kernel for NarrowTile<T, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for p in 0..P {
            // SAFETY: as for a tile.
            unsafe {
                match self.0.halves {
                    false => self.0.registers::<S, false, false, true>(p),
                    true => self.0.registers::<S, true, false, true>(p),
                }
            }
        }
    }
}

/// Unrolls `work` for every token below `T` (at most eight), so that accumulators stay in registers: the
/// compiler spills them in the widest tile if this is a loop.
macro_rules! for_each_token {
    ($t:ident in $n:ident $work:block) => {
        for_each_token!(@ $t $n $work 0 1 2 3 4 5 6 7);
    };
    (@ $t:ident $n:ident $work:block $($i:literal)*) => {
        $(if $i < $n {
            let $t = $i;
            $work
        })*
    };
}

/// Scales, mins and offsets that turn the integer dots of a block (or half block) into f32.
pub(super) struct Scales<S: SimdIsa, const HALVES: bool, const MIN: bool> {
    /// Sums of the weights: one element for each of the sixteen rows.
    sums: S::I,
    scales: S::F,
    mins: S::F,
    /// Pairs of the activations: one element for each token of the group.
    pairs: *const i32,
    token_scales: *const f32,
    token_sums: *const f32,
}

impl<S: SimdIsa, const HALVES: bool, const MIN: bool> Scales<S, HALVES, MIN> {
    #[inline(always)]
    unsafe fn of<const T: usize, const P: usize>(tile: &Tile<T, P>, p: usize, b: usize, part: usize) -> Self {
        let vector = (b * if HALVES { 2 } else { 1 } + part) * PANEL;
        // SAFETY: block `b` is one of the tile's, by the caller.
        unsafe {
            let sums = S::iload(tile.weights[p].sums.add(vector));
            let scales = S::load(tile.weights[p].scales.add(vector));
            let mins = if MIN { S::load(tile.weights[p].mins.add(vector)) } else { S::splat(0.0) };
            Self::new(sums, scales, mins, tile.x.add(b * RECORD + tile.first * 4), part)
        }
    }

    /// Adds the products of a block's (or half block's) sums, scales and mins and the tokens' record, offset
    /// to the first token's entries.
    #[inline(always)]
    pub(super) unsafe fn new(sums: S::I, scales: S::F, mins: S::F, record: *const u8, part: usize) -> Self {
        let (pair_at, sum_at) = match HALVES {
            true => (HALF_PAIR_AT + part * HALF_STEP, HALF_SUM_AT + part * HALF_STEP),
            false => (PAIR_AT, SUM_AT),
        };
        // SAFETY: arrays of a record have sixteen entries of four bytes.
        let (pairs, token_scales, token_sums) =
            unsafe { (record.add(pair_at).cast(), record.add(SCALE_AT).cast(), record.add(sum_at).cast()) };
        Self { sums, scales, mins, pairs, token_scales, token_sums }
    }

    /// `acc` plus the scaled dots of token `t`.
    #[inline(always)]
    pub(super) unsafe fn add(&self, acc: S::F, dots: S::I, t: usize) -> S::F {
        // SAFETY: `t` is a token of the tile, by the caller.
        unsafe {
            // zero · Σ weights - offset · Σ codes, exactly.
            let dots = S::dot_pairs(dots, self.sums, S::isplat(*self.pairs.add(t)));
            let scale = S::mul(self.scales, S::splat(*self.token_scales.add(t)));
            let acc = S::fma(scale, S::float(dots), acc);
            if MIN { S::fma(self.mins, S::splat(*self.token_sums.add(t)), acc) } else { acc }
        }
    }
}

/// Accumulators of one panel in a two-panel tile, [8][16].
#[repr(align(64))]
struct Outputs([f32; PAIR_TOKENS * PANEL]);

impl<const T: usize, const P: usize> Tile<T, P> {
    #[inline(always)]
    unsafe fn load_acc<S: SimdIsa>(&self, p: usize) -> [S::F; T] {
        // SAFETY: T rows of outputs by contract.
        unsafe {
            let mut acc = [S::splat(0.0); T];
            if self.adds {
                for_each_token!(t in T {
                    acc[t] = S::load(self.out[p].add(t * self.stride));
                });
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn store_acc<S: SimdIsa>(&self, p: usize, acc: [S::F; T]) {
        for_each_token!(t in T {
            // SAFETY: T rows of outputs by contract.
            unsafe { S::store(self.out[p].add(t * self.stride), acc[t]) };
        });
    }

    #[inline(always)]
    unsafe fn int_dots<S: SimdIsa, const HALVES: bool, const MIN: bool>(&self) {
        // SAFETY: as for the callees.
        unsafe {
            if S::HAS_PAIR_TILE && T == PAIR_TOKENS && P == 2 {
                return self.pair_tile::<S, HALVES, MIN>();
            }
            for p in 0..P {
                self.registers::<S, HALVES, MIN, false>(p);
            }
        }
    }

    /// The int8 codes of the tile's token `t` in block `b`.
    #[inline(always)]
    fn codes_of(&self, b: usize, t: usize) -> *const i8 {
        self.x.wrapping_add(b * RECORD + (self.first + t) * BLOCK).cast()
    }

    /// Prefetches the next K block, a part of it with each block, so that memory reads overlap with the
    /// arithmetic.
    #[inline(always)]
    unsafe fn prefetch_ahead<S: SimdIsa>(&self, p: usize, b: usize) {
        let Unpacked { ahead, ahead_bytes, .. } = self.weights[p];
        // SAFETY: any address may be prefetched.
        unsafe { prefetch_bytes::<S, false>(ahead.wrapping_add(b * ahead_bytes), ahead_bytes) };
    }

    /// int8 dots of one panel with accumulators in registers.
    #[inline(always)]
    unsafe fn registers<S: SimdIsa, const HALVES: bool, const MIN: bool, const NARROW: bool>(
        &self,
        p: usize,
    ) {
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
        unsafe {
            let mut acc = self.load_acc::<S>(p);
            for b in 0..self.n_blocks {
                let codes = self.weights[p].codes.add(b * PANEL * BLOCK);
                self.prefetch_ahead::<S>(p, b);
                for part in 0..if HALVES { 2 } else { 1 } {
                    let mut dots = [S::isplat(0); T];
                    for half in if HALVES { part..part + 1 } else { 0..2 } {
                        let w: [S::B; 4] = std::array::from_fn(|v| S::bload(codes.add((4 * half + v) * 64)));
                        for_each_token!(t in T {
                            let x = self.codes_of(b, t).add(half * 16);
                            dots[t] = if MIN || NARROW { S::dot16(dots[t], &w, x) } else { S::dot16_wide(dots[t], &w, x) };
                        });
                    }
                    let scales = Scales::<S, HALVES, MIN>::of(self, p, b, part);
                    for_each_token!(t in T {
                        acc[t] = scales.add(acc[t], dots[t], t);
                    });
                }
            }
            self.store_acc::<S>(p, acc);
        }
    }

    /// Eight tokens times two panels with the ISA's own kernel; the accumulators stay in L1 between blocks.
    #[inline(always)]
    unsafe fn pair_tile<S: SimdIsa, const HALVES: bool, const MIN: bool>(&self) {
        let mut acc = [const { Outputs([0.0; PAIR_TOKENS * PANEL]) }; 2];
        let acc = acc.each_mut().map(|acc| acc.0.as_mut_ptr());
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract; T and P are those the ISA's kernel expects.
        unsafe {
            for (p, acc) in acc.iter().enumerate() {
                let before = self.load_acc::<S>(p);
                for_each_token!(t in T {
                    S::store(acc.add(t * PANEL), before[t]);
                });
            }
            for b in 0..self.n_blocks {
                for p in 0..P {
                    self.prefetch_ahead::<S>(p, b);
                }
                let block = |part: usize| {
                    let vector = (b * if HALVES { 2 } else { 1 } + part) * PANEL;
                    PairBlock {
                        x: self.codes_of(b, 0).wrapping_add(part * 16),
                        record: self.x.wrapping_add(b * RECORD + self.first * 4),
                        codes: [0, 1].map(|p| self.weights[p].codes.wrapping_add((b * 8 + part * 4) * 64)),
                        sums: [0, 1].map(|p| self.weights[p].sums.wrapping_add(vector)),
                        scales: [0, 1].map(|p| self.weights[p].scales.wrapping_add(vector)),
                        mins: [0, 1].map(|p| self.weights[p].mins.wrapping_add(vector)),
                        acc,
                    }
                };
                if HALVES {
                    S::pair_tile::<4, HALF_PAIR_AT, HALF_SUM_AT, MIN>(block(0));
                    let second = block(1);
                    S::pair_tile::<4, { HALF_PAIR_AT + HALF_STEP }, { HALF_SUM_AT + HALF_STEP }, MIN>(second);
                } else {
                    S::pair_tile::<8, PAIR_AT, SUM_AT, MIN>(block(0));
                }
            }
            for (acc, out) in acc.iter().zip(self.out) {
                for_each_token!(t in T {
                    S::store(out.add(t * self.stride), S::load(acc.add(t * PANEL)));
                });
            }
        }
    }

    #[inline(always)]
    unsafe fn float_dots<S: SimdIsa>(&self) {
        for p in 0..P {
            // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
            unsafe {
                let mut acc = self.load_acc::<S>(p);
                for b in 0..self.n_blocks {
                    let weights = self.weights[p].codes.cast::<f32>().add(b * PANEL * BLOCK);
                    let x = self.x.add(b * FLOAT_RECORD).cast::<f32>().add(self.first * BLOCK);
                    self.prefetch_ahead::<S>(p, b);
                    let mut dots = [S::splat(0.0); T];
                    for k in 0..BLOCK {
                        let w = S::load(weights.add(k * PANEL));
                        for_each_token!(t in T {
                            dots[t] = S::fma(w, S::splat(*x.add(t * BLOCK + k)), dots[t]);
                        });
                    }
                    for_each_token!(t in T {
                        acc[t] = S::add(acc[t], dots[t]);
                    });
                }
                self.store_acc::<S>(p, acc);
            }
        }
    }
}
