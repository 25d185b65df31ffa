//! A single token in bfloat16 without tiles: the sums that tiles have, bit by bit, in vector registers. For one token,
//! filling tiles would take longer than the weights take to come from memory. Refuses to know whose token it is.

use std::mem::MaybeUninit;

use super::bfloats::{BFLOAT_RECORD, BLOCK_SUM_AT, HALF_SUMS_AT};
use super::stretch::STRETCH;
use crate::quant::{BLOCK, CodeLayout, PANEL, gather};
use crate::simd::{Lane, Task, TileRun};

/// One token over a stretch of one panel; the run's codes are as they are stored.
pub(super) struct LoneToken {
    pub(super) run: TileRun,
    pub(super) codes: CodeLayout,
}

/// Values of a record's row as floats: the first of each pair, then the second ones.
type Widened = [[f32; BLOCK / 2]; 2];

impl Task for LoneToken {
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

impl LoneToken {
    #[inline(always)]
    unsafe fn dots<L: Lane, const BITS: usize, const HALVES: bool, const MIN: bool>(&self) {
        let run = &self.run;
        assert!(run.n_blocks <= STRETCH, "{} blocks", run.n_blocks);
        let mut x = MaybeUninit::<[Widened; STRETCH]>::uninit();
        let x = x.as_mut_ptr().cast::<Widened>();
        // SAFETY: `n_blocks` records, blocks of codes and vectors of scales, a row of outputs, by the driver.
        unsafe {
            for b in 0..run.n_blocks {
                widen::<L>(run.x.add(b * BFLOAT_RECORD), x.add(b));
            }
            let mut acc = if run.adds { L::load(run.out) } else { L::splat(0.0) };
            for b in 0..run.n_blocks {
                acc = self.block::<L, BITS, HALVES, MIN>(b, &*x.add(b), acc);
            }
            L::store(run.out, acc);
        }
    }

    /// `acc` and what block `b` adds to it.
    #[inline(always)]
    unsafe fn block<L: Lane, const BITS: usize, const HALVES: bool, const MIN: bool>(
        &self,
        b: usize,
        [first, second]: &Widened,
        acc: L::F,
    ) -> L::F {
        let run = &self.run;
        let n_parts = if HALVES { 2 } else { 1 };
        // SAFETY: the block is one of the run's, by the caller.
        unsafe {
            for line in 0..BITS {
                L::prefetch(run.ahead.wrapping_add(b * run.ahead_step + line * 64));
            }
            let codes = gather::<L, BITS>(run.codes.add(b * BITS * 64));
            let mut sums = [[L::splat(0.0); 2]; 2];
            for (v, codes) in codes.into_iter().enumerate() {
                let [w0, w1, w2, w3] = self.values::<L, BITS>(codes);
                let [even, odd] = &mut sums[v * n_parts / 8];
                *even = L::fma(w0, L::splat(first[2 * v]), *even);
                *odd = L::fma(w2, L::splat(second[2 * v]), *odd);
                *even = L::fma(w1, L::splat(first[2 * v + 1]), *even);
                *odd = L::fma(w3, L::splat(second[2 * v + 1]), *odd);
            }
            let mut acc = acc;
            for (part, [even, odd]) in sums.into_iter().enumerate().take(n_parts) {
                let at = (b * n_parts + part) * PANEL;
                acc = L::fma(L::load(run.scales.add(at)), L::add(even, odd), acc);
                if MIN {
                    let sum_at = if HALVES { HALF_SUMS_AT + part * 64 } else { BLOCK_SUM_AT };
                    let sum = run.x.add(b * BFLOAT_RECORD + sum_at).cast::<f32>().read_unaligned();
                    acc = L::fma(L::load(run.mins.add(at)), L::splat(sum), acc);
                }
            }
            acc
        }
    }

    /// What the codes of four columns and sixteen rows stand for, as tiles have it.
    #[inline(always)]
    unsafe fn values<L: Lane, const BITS: usize>(&self, codes: L::B) -> [L::F; 4] {
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

#[inline(always)]
unsafe fn widen<L: Lane>(row: *const u8, out: *mut Widened) {
    // SAFETY: 64 bytes at `row` and room at `out`, by the caller.
    unsafe {
        let (pairs, out) = (L::iload(row.cast()), out.cast::<f32>());
        L::store(out, L::from_bits(L::ishl::<16>(pairs)));
        L::store(out.add(BLOCK / 2), L::from_bits(L::iand(pairs, L::isplat(0xFFFF_0000_u32 as i32))));
    }
}
