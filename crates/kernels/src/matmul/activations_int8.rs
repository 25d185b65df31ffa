//! Quantizes activations to int8 with one scale and one zero point for each 32 elements. Does not know
//! weights.

use std::ops::Range;

use super::activation_rows::{GROUP, Rows, whole};
use crate::layout::{BLOCK, HALF_PAIR_AT, HALF_STEP, HALF_SUM_AT, PAIR_AT, PANEL, RECORD, SCALE_AT, SUM_AT};
use crate::simd::{Kernel, SimdIsa};

/// Blocks below this magnitude (2^-100) become zeros: the inverse of their scale would overflow f32.
const SMALLEST: f32 = 7.888_609e-31;
/// Adding 1.5 × 2^23 rounds to the nearest integer (ties to even) and leaves it in the low bits of the
/// mantissa.
const ROUND: f32 = 12_582_912.0;

/// Blocks quantized together, of one token or of several: scale and zero point are computed for all of them
/// in one vector.
const TOGETHER: usize = GROUP;
/// Number of tokens from which on blocks of several tokens are quantized together.
const MANY_ROWS: usize = 4;

/// Quantizes tokens into a group's records; entries of absent tokens are unspecified.
pub(super) struct Quantize<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// Records, one per block, or empty.
    pub(super) out: &'a mut [u8],
    /// Records of the quantization residual, or empty.
    pub(super) residuals: &'a mut [u8],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(mut self) {
        if self.out.is_empty() {
            return;
        }
        let (n_rows, n_blocks) = (self.rows.n(), self.rows.n_blocks());
        // SAFETY: the caller guarantees the features.
        unsafe {
            if n_rows >= MANY_ROWS {
                for b in 0..n_blocks {
                    self.put::<S, true>(0..n_rows, b..b + 1);
                }
                return;
            }
            for t in 0..n_rows {
                for b in (0..n_blocks).step_by(TOGETHER) {
                    self.put::<S, false>(t..t + 1, b..n_blocks.min(b + TOGETHER));
                }
            }
        }
    }
}

impl Quantize<'_> {
    /// Quantizes one block of several tokens, or several blocks of one token.
    #[inline(always)]
    unsafe fn put<S: SimdIsa, const ROWS: bool>(&mut self, rows: Range<usize>, blocks: Range<usize>) {
        let n = rows.len() * blocks.len();
        let at = |i: usize| if ROWS { (i, 0) } else { (0, i) };
        let mut padded = [[0.0; BLOCK]; TOGETHER];
        let mut x = [std::ptr::null(); TOGETHER];
        for (i, (x, padded)) in x[..n].iter_mut().zip(&mut padded).enumerate() {
            *x = whole(self.rows.block(rows.start + at(i).0, blocks.start + at(i).1), padded).as_ptr();
        }
        let bytes = blocks.start * RECORD..blocks.end * RECORD;
        // SAFETY: each of `x` has 32 elements; the caller guarantees the features.
        unsafe {
            let records = &mut self.out[bytes.clone()];
            quantize_blocks::<S, ROWS>(&x[..n], rows.start, records);
            if !self.residuals.is_empty() {
                let mut rest = [[0.0; BLOCK]; TOGETHER];
                for (i, (x, rest)) in x[..n].iter_mut().zip(&mut rest).enumerate() {
                    let record = &records[at(i).1 * RECORD..][..RECORD];
                    *rest = left_over(&*x.cast(), rows.start + at(i).0, record);
                    *x = rest.as_ptr();
                }
                quantize_blocks::<S, ROWS>(&x[..n], rows.start, &mut self.residuals[bytes]);
            }
        }
    }
}

/// The quantization residual: `x` minus the numbers that token `t`'s record represents.
#[inline(always)]
fn left_over(x: &[f32; BLOCK], t: usize, record: &[u8]) -> [f32; BLOCK] {
    let word = |at: usize| {
        let at = at + 4 * t;
        [record[at], record[at + 1], record[at + 2], record[at + 3]]
    };
    let scale = f32::from_le_bytes(word(SCALE_AT));
    let zero = i32::from(u32::from_le_bytes(word(PAIR_AT)) as i16);
    let mut rest = *x;
    for (x, code) in rest.iter_mut().zip(&record[t * BLOCK..][..BLOCK]) {
        *x -= scale * (i32::from(*code as i8) + zero) as f32;
    }
    rest
}

/// Quantizes up to sixteen blocks: of token `t`, one record each, or with `ROWS` of tokens 0.., all into one
/// record. Codes are `round(x / scale) - zero`, within -127..=127, and `zero` is within ±4096.
///
/// # Safety
/// 32 floats at each of `x`; the ISA's features.
#[inline(always)]
pub(crate) unsafe fn quantize_blocks<S: SimdIsa, const ROWS: bool>(
    x: &[*const f32],
    t: usize,
    records: &mut [u8],
) {
    let (row_step, record_step) = if ROWS { (1, 0) } else { (0, RECORD) };
    assert!(x.len() <= TOGETHER && if ROWS { t == 0 } else { t < GROUP });
    assert!(records.len() >= if ROWS { RECORD } else { x.len() * RECORD });
    let zeros = [0.0; TOGETHER];
    let mut ranges = Ranges { magnitude: zeros, low: zeros, high: zeros };
    let mut sums = [[0; TOGETHER]; 2];
    let records = records.as_mut_ptr();
    // SAFETY: 32 floats at each of `x`, by the caller; as many records, with room for sixteen rows.
    unsafe {
        for (i, x) in x.iter().enumerate() {
            let (a, b) = (S::load(*x), S::load(x.add(PANEL)));
            let magnitude = |v| S::iand(S::bits(v), S::isplat(i32::MAX));
            // As integers the magnitudes sort like the numbers, with NaN above infinity.
            ranges.magnitude[i] = f32::from_bits(S::ilargest(S::imax(magnitude(a), magnitude(b))) as u32);
            ranges.low[i] = S::smallest(S::min(a, b));
            ranges.high[i] = S::largest(S::max(a, b));
        }
        let Steps { scale, inverse, zero } = ranges.steps::<S>();
        for (i, x) in x.iter().enumerate() {
            for (half, sums) in sums.iter_mut().enumerate() {
                let scaled = S::mul(S::load(x.add(half * PANEL)), S::splat(inverse[i]));
                let rounded = S::bits(S::add(scaled, S::splat(ROUND)));
                let mut codes = S::isub(rounded, S::isplat(ROUND.to_bits() as i32 + zero[i]));
                if inverse[i] == 0.0 {
                    codes = S::isplat(0);
                }
                let row = t + i * row_step;
                S::istore_i8(records.add(i * record_step + row * BLOCK + half * PANEL).cast(), codes);
                sums[i] = S::isum(codes);
            }
        }
        let (scale, zero) = (S::load(scale.as_ptr()), S::iload(zero.as_ptr()));
        let halves = sums.each_ref().map(|sums| S::iload(sums.as_ptr()));
        let both = S::iadd(halves[0], halves[1]);
        let (zeros, half_zeros) = (S::ishl::<5>(zero), S::ishl::<4>(zero));
        for (at, words) in [
            (SCALE_AT, S::bits(scale)),
            (PAIR_AT, pair::<S>(zero, both)),
            (SUM_AT, total::<S>(scale, both, zeros)),
            (HALF_PAIR_AT, pair::<S>(zero, halves[0])),
            (HALF_PAIR_AT + HALF_STEP, pair::<S>(zero, halves[1])),
            (HALF_SUM_AT, total::<S>(scale, halves[0], half_zeros)),
            (HALF_SUM_AT + HALF_STEP, total::<S>(scale, halves[1], half_zeros)),
        ] {
            if ROWS {
                S::istore(records.add(at).cast(), words);
            } else {
                let mut of_blocks = [0; TOGETHER];
                S::istore(of_blocks.as_mut_ptr(), words);
                for (i, word) in of_blocks[..x.len()].iter().enumerate() {
                    records.add(i * RECORD + at).cast::<i32>().add(t).write_unaligned(*word);
                }
            }
        }
    }
}

/// i16 pairs of zero point and `-Σ codes` (see [`crate::layout`]).
#[inline(always)]
unsafe fn pair<S: SimdIsa>(zero: S::I, sum: S::I) -> S::I {
    // SAFETY: the caller guarantees the features.
    unsafe { S::iadd(S::iand(zero, S::isplat(0xFFFF)), S::ishl::<16>(S::isub(S::isplat(0), sum))) }
}

/// `Σ x` of the quantized elements: scale times the sum of codes and zero points.
#[inline(always)]
unsafe fn total<S: SimdIsa>(scale: S::F, codes: S::I, zeros: S::I) -> S::I {
    // SAFETY: the caller guarantees the features.
    unsafe { S::bits(S::mul(scale, S::float(S::iadd(codes, zeros)))) }
}

/// Ranges of each block: the largest magnitude (NaN if there is one), the smallest and the largest element.
struct Ranges {
    magnitude: [f32; TOGETHER],
    low: [f32; TOGETHER],
    high: [f32; TOGETHER],
}

/// Quantization parameters of the blocks.
struct Steps {
    scale: [f32; TOGETHER],
    /// 1 / scale; zero for a block that becomes zeros or is not finite.
    inverse: [f32; TOGETHER],
    zero: [i32; TOGETHER],
}

impl Ranges {
    #[inline(always)]
    unsafe fn steps<S: SimdIsa>(&self) -> Steps {
        let mut steps = Steps { scale: [0.0; TOGETHER], inverse: [0.0; TOGETHER], zero: [0; TOGETHER] };
        // SAFETY: sixteen elements each.
        unsafe {
            let (low, high) = (S::load(self.low.as_ptr()), S::load(self.high.as_ptr()));
            // 253 steps leave half a step at either end for the rounding of the zero point. A narrow range far from zero keeps a
            // relative precision of 1/8192, which bounds the zero point.
            let n_steps = S::splat(253.0);
            let step = S::sub(S::div(high, n_steps), S::div(low, n_steps));
            let least = S::mul(S::load(self.magnitude.as_ptr()), S::splat(1.0 / 4096.0));
            let scale = S::max(step, least);
            let half = S::splat(0.5);
            let center = S::div(S::add(S::mul(high, half), S::mul(low, half)), scale);
            let zero = S::isub(S::bits(S::add(center, S::splat(ROUND))), S::isplat(ROUND.to_bits() as i32));
            S::store(steps.scale.as_mut_ptr(), scale);
            S::store(steps.inverse.as_mut_ptr(), S::div(S::splat(1.0), scale));
            S::istore(steps.zero.as_mut_ptr(), zero);
        }
        for (t, magnitude) in self.magnitude.into_iter().enumerate() {
            if !(magnitude >= SMALLEST && magnitude.is_finite()) {
                let scale = if magnitude < SMALLEST { 0.0 } else { f32::NAN };
                (steps.scale[t], steps.inverse[t], steps.zero[t]) = (scale, 0.0, 0);
            }
        }
        steps
    }
}
