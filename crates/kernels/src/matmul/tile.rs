//! Register tiles: up to twelve tokens times the sixteen rows of a panel. Refuses to know formats and threads.
//!
//! An output element is a lane of an accumulator: block after block along the columns, `acc += scale · dot` with an
//! exact integer dot (or a float dot summed from left to right), so its bits do not depend on the tile it was in.

use super::activations::{FLOAT_RECORD, GROUP, HALF_PAIR_AT, HALF_SUM_AT, PAIR_AT, RECORD, SCALE_AT, SUM_AT};
use crate::quant::{BLOCK, PANEL, Unpacked};
use crate::simd::{Lane, Task};

/// The widest tile, in tokens.
pub(crate) const MAX_TOKENS: usize = 12;

/// One tile over a stretch of blocks; `T` tokens, 1, 2 or a multiple of four.
pub(crate) struct Tile<const T: usize> {
    pub(crate) weights: Unpacked,
    /// A half block has its own scale.
    pub(crate) halves: bool,
    /// Codes are unsigned below 64 and mins are added; otherwise they are value + 128.
    pub(crate) has_min: bool,
    /// The weights are floats.
    pub(crate) floats: bool,
    pub(crate) n_blocks: usize,
    /// The first record of the stretch for each group of four tokens.
    pub(crate) x: [*const u8; MAX_TOKENS / GROUP],
    /// [T][16], read and written.
    pub(crate) acc: *mut f32,
}

impl<const T: usize> Task for Tile<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        // SAFETY: the driver gives as many blocks, records and accumulators as the fields say.
        unsafe {
            match (self.floats, self.halves, self.has_min) {
                (true, ..) => self.float_dots::<L>(),
                (_, false, false) => self.int_dots::<L, false, false>(),
                (_, false, true) => self.int_dots::<L, false, true>(),
                (_, true, false) => self.int_dots::<L, true, false>(),
                (_, true, true) => self.int_dots::<L, true, true>(),
            }
        }
    }
}

impl<const T: usize> Tile<T> {
    #[inline(always)]
    unsafe fn load_acc<L: Lane>(&self) -> [L::F; T] {
        // SAFETY: [T][16] by contract.
        std::array::from_fn(|t| unsafe { L::load(self.acc.add(t * PANEL)) })
    }

    #[inline(always)]
    unsafe fn store_acc<L: Lane>(&self, acc: [L::F; T]) {
        for (t, acc) in acc.into_iter().enumerate() {
            // SAFETY: [T][16] by contract.
            unsafe { L::store(self.acc.add(t * PANEL), acc) };
        }
    }

    #[inline(always)]
    unsafe fn int_dots<L: Lane, const HALVES: bool, const MIN: bool>(&self) {
        let parts = if HALVES { 2 } else { 1 };
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
        unsafe {
            let mut acc = self.load_acc::<L>();
            for b in 0..self.n_blocks {
                let record = |t: usize| self.x[t / GROUP].add(b * RECORD);
                let codes = self.weights.codes.add(b * PANEL * BLOCK);
                for part in 0..parts {
                    let pair_at = if HALVES { HALF_PAIR_AT + part * 16 } else { PAIR_AT };
                    let vector = (b * parts + part) * PANEL;
                    // zero · Σ weights - offset · Σ codes, exactly.
                    let sums = L::iload(self.weights.sums.add(vector));
                    let mut dots: [L::I; T] = std::array::from_fn(|t| {
                        let pair = *record(t).add(pair_at).cast::<i32>().add(t % GROUP);
                        L::dot_pairs(L::isplat(0), sums, L::isplat(pair))
                    });
                    for half in if HALVES { part..part + 1 } else { 0..2 } {
                        let w: [L::B; 4] = std::array::from_fn(|v| L::bload(codes.add((4 * half + v) * 64)));
                        if T <= 4 {
                            (0..4).for_each(|v| L::prefetch(codes.wrapping_add(4096 + (4 * half + v) * 64)));
                        }
                        for (t, dot) in dots.iter_mut().enumerate() {
                            let x = record(t).add(t % GROUP * BLOCK + half * 16).cast();
                            *dot = if MIN { L::dot16(*dot, &w, x) } else { L::dot16_wide(*dot, &w, x) };
                        }
                    }
                    let scale = L::load(self.weights.scales.add(vector));
                    for (t, (acc, dot)) in acc.iter_mut().zip(dots).enumerate() {
                        let float = |at: usize| L::splat(*record(t).add(at).cast::<f32>().add(t % GROUP));
                        let scale = L::mul(scale, float(SCALE_AT));
                        *acc = L::add(*acc, L::mul(scale, L::float(dot)));
                        if MIN {
                            let sum_at = if HALVES { HALF_SUM_AT + part * 16 } else { SUM_AT };
                            let min = L::load(self.weights.mins.add(vector));
                            *acc = L::add(*acc, L::mul(min, float(sum_at)));
                        }
                    }
                }
            }
            self.store_acc::<L>(acc);
        }
    }

    #[inline(always)]
    unsafe fn float_dots<L: Lane>(&self) {
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
        unsafe {
            let mut acc = self.load_acc::<L>();
            for b in 0..self.n_blocks {
                let weights = self.weights.codes.cast::<f32>().add(b * PANEL * BLOCK);
                let mut dots = [L::splat(0.0); T];
                for k in 0..BLOCK {
                    let w = L::load(weights.add(k * PANEL));
                    if T <= 4 {
                        L::prefetch(weights.wrapping_add(k * PANEL + 1024).cast());
                    }
                    for (t, dot) in dots.iter_mut().enumerate() {
                        let x = self.x[t / GROUP].add(b * FLOAT_RECORD).cast::<f32>();
                        let x = L::splat(*x.add(t % GROUP * BLOCK + k));
                        *dot = L::add(*dot, L::mul(w, x));
                    }
                }
                for (acc, dot) in acc.iter_mut().zip(dots) {
                    *acc = L::add(*acc, dot);
                }
            }
            self.store_acc::<L>(acc);
        }
    }
}
