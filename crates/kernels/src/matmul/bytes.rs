//! Activations as bytes, the form of the dots of bytes: one scale and one zero point for 32 elements. Refuses to know weights.

use super::activations::{Rows, whole};
use crate::quant::BLOCK;
use crate::simd::{Lane, Task};

/// Bytes of a group's quantized block: 16 × 32 codes, then the arrays below, sixteen values each.
pub(crate) const RECORD: usize = 960;
/// f32 scales.
pub(crate) const SCALE_AT: usize = 512;
/// Pairs of i16, the zero point and `-Σ codes`: what the weights' sum and their codes' offset are multiplied by.
pub(crate) const PAIR_AT: usize = 576;
/// f32 `Σ x` of the rounded elements: what a weight block's min is multiplied by.
pub(crate) const SUM_AT: usize = 640;
/// The pairs of the two half blocks.
pub(crate) const HALF_PAIR_AT: usize = 704;
/// The sums of the two half blocks.
pub(crate) const HALF_SUM_AT: usize = 832;
/// Bytes from one array of a half block to the other's.
pub(crate) const HALF_STEP: usize = 64;
/// Below this magnitude (2^-100) a block counts as zeros: its scale's inverse would leave the floats' range.
const SMALLEST: f32 = 7.888_609e-31;

/// Rows to a group's quantized records; rows that are not there stay what they were.
pub(super) struct Quantize<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// One record a block, or empty.
    pub(super) out: &'a mut [u8],
    /// As `out`, or empty.
    pub(super) residuals: &'a mut [u8],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        if self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let record = &mut self.out[b * RECORD..][..RECORD];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded);
            // SAFETY: `x` has 32 elements and the record its size; the features are the caller's word.
            unsafe { quantize_block::<L>(x.as_ptr(), t, record.as_mut_ptr()) };
            if !self.residuals.is_empty() {
                let rest = rest(x, t, record);
                let record = &mut self.residuals[b * RECORD..][..RECORD];
                // SAFETY: as above.
                unsafe { quantize_block::<L>(rest.as_ptr(), t, record.as_mut_ptr()) };
            }
        });
    }
}

/// What the record of row `t` leaves over of `x`.
#[inline(always)]
fn rest(x: &[f32], t: usize, record: &[u8]) -> [f32; BLOCK] {
    let word = |at: usize| {
        let at = at + 4 * t;
        [record[at], record[at + 1], record[at + 2], record[at + 3]]
    };
    let scale = f32::from_le_bytes(word(SCALE_AT));
    let zero = i32::from(u32::from_le_bytes(word(PAIR_AT)) as i16);
    std::array::from_fn(|i| x[i] - scale * (i32::from(record[t * BLOCK + i] as i8) + zero) as f32)
}

#[inline(always)]
pub(crate) unsafe fn quantize_block<L: Lane>(x: *const f32, t: usize, record: *mut u8) {
    /// Adding it rounds to the nearest integer (even in a tie), which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: 32 floats at `x`, a record at `record`, `t` below sixteen.
    unsafe {
        let (a, b) = (L::load(x), L::load(x.add(16)));
        let (scale, zero) = scale_and_zero::<L>(a, b);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut sums = [0i32; 2];
        for (half, v) in [a, b].into_iter().enumerate() {
            let rounded = L::add(L::mul(v, L::splat(inverse)), L::splat(ROUND));
            let mut codes = L::isub(L::bits(rounded), L::isplat(ROUND.to_bits() as i32 + zero));
            if inverse == 0.0 {
                codes = L::isplat(0);
            }
            L::istore_i8(record.add(t * BLOCK + half * 16).cast(), codes);
            sums[half] = L::isum(codes);
        }
        let put = |at: usize, word: u32| record.add(at).cast::<u32>().add(t).write_unaligned(word);
        let pair = |sum: i32| zero as u32 & 0xFFFF | (-sum as u32) << 16;
        let total = |sum: i32, n: i32| (scale * (sum + n * zero) as f32).to_bits();
        put(SCALE_AT, scale.to_bits());
        put(PAIR_AT, pair(sums[0] + sums[1]));
        put(SUM_AT, total(sums[0] + sums[1], 32));
        for (half, sum) in sums.into_iter().enumerate() {
            put(HALF_PAIR_AT + half * HALF_STEP, pair(sum));
            put(HALF_SUM_AT + half * HALF_STEP, total(sum, 16));
        }
    }
}

/// The scale and zero point of a block: codes `round(x / scale) - zero` lie in -127..=127 and zero in ±4096.
#[inline(always)]
unsafe fn scale_and_zero<L: Lane>(a: L::F, b: L::F) -> (f32, i32) {
    // SAFETY: no memory is touched.
    unsafe {
        let magnitude = |v| L::iand(L::bits(v), L::isplat(i32::MAX));
        // As integers the magnitudes sort like the numbers, with NaN above infinity.
        let magnitude = f32::from_bits(L::ilargest(L::imax(magnitude(a), magnitude(b))) as u32);
        if magnitude < SMALLEST {
            return (0.0, 0);
        }
        if !magnitude.is_finite() {
            return (f32::NAN, 0);
        }
        let (low, high) = (L::smallest(L::min(a, b)), L::largest(L::max(a, b)));
        // 253 steps leave half a step at either end for the rounding of the zero point. A narrow range far from zero
        // keeps a relative precision of 1/8192, which bounds the zero point.
        let step = high / 253.0 - low / 253.0;
        let least = magnitude / 4096.0;
        let scale = if step > least { step } else { least };
        let center = (high * 0.5 + low * 0.5) / scale;
        (scale, center.round_ties_even() as i32)
    }
}
