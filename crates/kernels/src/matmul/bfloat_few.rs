//! One or two tokens in bfloat16 without tiles: the sums that tiles have, bit by bit, in vector registers. For so few
//! tokens, filling tiles would take longer than the weights take to come from memory. Refuses to know whose tokens they are.

use std::mem::MaybeUninit;

use super::bfloats::{BFLOAT_RECORD, BLOCK_SUM_AT, HALF_SUMS_AT};
use crate::quant::{BLOCK, CodeLayout, PANEL, gather};
use crate::simd::{Lane, Task, TileRun};

/// Tokens at most.
pub(super) const FEW_TOKENS: usize = 2;
/// Blocks of a stretch at most.
pub(super) const FEW_BLOCKS: usize = 32;

/// `T` tokens over a stretch of one panel; the run's codes are as they are stored.
pub(super) struct FewTokens<const T: usize> {
    pub(super) run: TileRun,
    pub(super) codes: CodeLayout,
}

/// Values of the tokens' records as floats, [block][token][first or second of a pair][16].
type Widened<const T: usize> = [[[[f32; BLOCK / 2]; 2]; T]; FEW_BLOCKS];

impl<const T: usize> Task for FewTokens<T> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let scales = self.codes.scales;
        // SAFETY: for all, by the driver.
        unsafe {
            match (self.codes.bits, scales.halves(), scales.has_min()) {
                (8, ..) => self.dots::<L, 8, false, false>(),
                (4, _, false) => self.dots::<L, 4, false, false>(),
                (4, _, true) => self.dots::<L, 4, false, true>(),
                (5, _, false) => self.dots::<L, 5, false, false>(),
                (5, _, true) => self.dots::<L, 5, false, true>(),
                (6, ..) => self.dots::<L, 6, true, false>(),
                (3, ..) => self.dots::<L, 3, true, false>(),
                _ => self.dots::<L, 2, true, true>(),
            }
        }
    }
}

impl<const T: usize> FewTokens<T> {
    #[inline(always)]
    unsafe fn dots<L: Lane, const BITS: usize, const HALVES: bool, const MIN: bool>(&self) {
        let run = &self.run;
        assert!(run.n_blocks <= FEW_BLOCKS, "{} blocks", run.n_blocks);
        let mut x = MaybeUninit::<Widened<T>>::uninit();
        let x = x.as_mut_ptr().cast::<[[[f32; BLOCK / 2]; 2]; T]>();
        // SAFETY: `n_blocks` records, blocks of codes and vectors of scales, `T` rows of outputs, by the driver.
        unsafe {
            for b in 0..run.n_blocks {
                for t in 0..T {
                    widen::<L>(run.x.add(b * BFLOAT_RECORD + t * BLOCK * 2), &raw mut (*x.add(b))[t]);
                }
            }
            let mut acc = [L::splat(0.0); T];
            if run.adds {
                acc = std::array::from_fn(|t| L::load(run.out.add(t * run.stride)));
            }
            for b in 0..run.n_blocks {
                for line in 0..BITS {
                    L::prefetch(run.ahead.wrapping_add(b * run.ahead_step + line * 64));
                }
                let (record, x) = (run.x.add(b * BFLOAT_RECORD), &*x.add(b));
                let stored = run.codes.add(b * BITS * 64);
                let codes = gather::<L, BITS>(stored);
                let mut sums = [[L::splat(0.0); 2]; T];
                for v in 0..8 {
                    let [w0, w1, w2, w3] = self.values::<L, BITS, MIN>(codes[v]);
                    for (sums, [first, second]) in sums.iter_mut().zip(x) {
                        sums[0] = L::fma(w0, L::splat(first[2 * v]), sums[0]);
                        sums[1] = L::fma(w2, L::splat(second[2 * v]), sums[1]);
                        sums[0] = L::fma(w1, L::splat(first[2 * v + 1]), sums[0]);
                        sums[1] = L::fma(w3, L::splat(second[2 * v + 1]), sums[1]);
                    }
                    let is_end = v == 7 || HALVES && v == 3;
                    if !is_end {
                        continue;
                    }
                    let (part, sum_at) =
                        if HALVES { (v / 4, HALF_SUMS_AT + v / 4 * 64) } else { (0, BLOCK_SUM_AT) };
                    let at = (b * if HALVES { 2 } else { 1 } + part) * PANEL;
                    for (t, (acc, sums)) in acc.iter_mut().zip(&mut sums).enumerate() {
                        *acc = L::fma(L::load(run.scales.add(at)), L::add(sums[0], sums[1]), *acc);
                        if MIN {
                            let sum = record.add(sum_at).cast::<f32>().add(t).read_unaligned();
                            *acc = L::fma(L::load(run.mins.add(at)), L::splat(sum), *acc);
                        }
                        *sums = [L::splat(0.0); 2];
                    }
                }
            }
            for (t, acc) in acc.into_iter().enumerate() {
                L::store(run.out.add(t * run.stride), acc);
            }
        }
    }

    /// What the codes of four columns and sixteen rows stand for, as tiles have it.
    #[inline(always)]
    unsafe fn values<L: Lane, const BITS: usize, const MIN: bool>(&self, codes: L::B) -> [L::F; 4] {
        // SAFETY: the lane has tiles, by the driver.
        unsafe {
            match BITS {
                8 => L::wide_values(codes),
                4 => L::nibble_values(codes, self.codes.table()),
                _ => L::small_values(codes, self.codes.zero),
            }
        }
    }
}

/// The 32 values of a token's row: the first of each pair, then the second ones.
#[inline(always)]
unsafe fn widen<L: Lane>(row: *const u8, out: *mut [[f32; BLOCK / 2]; 2]) {
    // SAFETY: 64 bytes at `row` and room at `out`, by the caller.
    unsafe {
        let (pairs, out) = (L::iload(row.cast()), out.cast::<f32>());
        L::store(out, L::from_bits(L::ishl::<16>(pairs)));
        L::store(out.add(BLOCK / 2), L::from_bits(L::iand(pairs, L::isplat(0xFFFF_0000_u32 as i32))));
    }
}
