//! Activations as bytes, the form of the dots of bytes: one scale and one zero point for 32 elements. Refuses to know weights.

use std::ops::Range;

use super::activations::{GROUP, Rows, whole};
use crate::quant::{BLOCK, PANEL};
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
/// Adding it rounds to the nearest integer (even in a tie), which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Blocks that are rounded together, of one row or of as many: what is one value a block is computed for all of them, an
/// element of a vector each.
const TOGETHER: usize = GROUP;
/// From so many rows on, blocks of several rows are rounded together.
const MANY_ROWS: usize = 4;

/// Rows to a group's quantized records; what stands for rows that are not there is unspecified.
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
    unsafe fn run<L: Lane>(mut self) {
        if self.out.is_empty() {
            return;
        }
        let (n_rows, n_blocks) = (self.rows.n(), self.rows.n_blocks());
        // SAFETY: the features are the caller's word.
        unsafe {
            if n_rows >= MANY_ROWS {
                for b in 0..n_blocks {
                    self.put::<L, true>(0..n_rows, b..b + 1);
                }
                return;
            }
            for t in 0..n_rows {
                for b in (0..n_blocks).step_by(TOGETHER) {
                    self.put::<L, false>(t..t + 1, b..n_blocks.min(b + TOGETHER));
                }
            }
        }
    }
}

impl Quantize<'_> {
    /// One block of some rows, or some blocks of one row.
    #[inline(always)]
    unsafe fn put<L: Lane, const ROWS: bool>(&mut self, rows: Range<usize>, blocks: Range<usize>) {
        let n = rows.len() * blocks.len();
        let at = |i: usize| if ROWS { (i, 0) } else { (0, i) };
        let mut padded = [[0.0; BLOCK]; TOGETHER];
        let mut x = [std::ptr::null(); TOGETHER];
        for (i, (x, padded)) in x[..n].iter_mut().zip(&mut padded).enumerate() {
            *x = whole(self.rows.block(rows.start + at(i).0, blocks.start + at(i).1), padded).as_ptr();
        }
        let bytes = blocks.start * RECORD..blocks.end * RECORD;
        // SAFETY: each of `x` has 32 elements; the features are the caller's word.
        unsafe {
            let records = &mut self.out[bytes.clone()];
            quantize_blocks::<L, ROWS>(&x[..n], rows.start, records);
            if !self.residuals.is_empty() {
                let mut rest = [[0.0; BLOCK]; TOGETHER];
                for (i, (x, rest)) in x[..n].iter_mut().zip(&mut rest).enumerate() {
                    let record = &records[at(i).1 * RECORD..][..RECORD];
                    *rest = left_over(&*x.cast(), rows.start + at(i).0, record);
                    *x = rest.as_ptr();
                }
                quantize_blocks::<L, ROWS>(&x[..n], rows.start, &mut self.residuals[bytes]);
            }
        }
    }
}

/// What the record of row `t` leaves over of `x`.
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

/// Up to sixteen blocks of row `t` to a record each, or of as many `ROWS`, from row 0 on, to one. Codes, which are
/// `round(x / scale) - zero`, lie in -127..=127 and zero in ±4096.
///
/// # Safety
/// 32 floats at each of `x`; the lane's features.
#[inline(always)]
pub(crate) unsafe fn quantize_blocks<L: Lane, const ROWS: bool>(
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
            let (a, b) = (L::load(*x), L::load(x.add(PANEL)));
            let magnitude = |v| L::iand(L::bits(v), L::isplat(i32::MAX));
            // As integers the magnitudes sort like the numbers, with NaN above infinity.
            ranges.magnitude[i] = f32::from_bits(L::ilargest(L::imax(magnitude(a), magnitude(b))) as u32);
            ranges.low[i] = L::smallest(L::min(a, b));
            ranges.high[i] = L::largest(L::max(a, b));
        }
        let Steps { scale, inverse, zero } = ranges.steps::<L>();
        for (i, x) in x.iter().enumerate() {
            for (half, sums) in sums.iter_mut().enumerate() {
                let scaled = L::mul(L::load(x.add(half * PANEL)), L::splat(inverse[i]));
                let rounded = L::bits(L::add(scaled, L::splat(ROUND)));
                let mut codes = L::isub(rounded, L::isplat(ROUND.to_bits() as i32 + zero[i]));
                if inverse[i] == 0.0 {
                    codes = L::isplat(0);
                }
                let row = t + i * row_step;
                L::istore_i8(records.add(i * record_step + row * BLOCK + half * PANEL).cast(), codes);
                sums[i] = L::isum(codes);
            }
        }
        let (scale, zero) = (L::load(scale.as_ptr()), L::iload(zero.as_ptr()));
        let halves = sums.each_ref().map(|sums| L::iload(sums.as_ptr()));
        let both = L::iadd(halves[0], halves[1]);
        let (zeros, half_zeros) = (L::ishl::<5>(zero), L::ishl::<4>(zero));
        for (at, words) in [
            (SCALE_AT, L::bits(scale)),
            (PAIR_AT, pair::<L>(zero, both)),
            (SUM_AT, total::<L>(scale, both, zeros)),
            (HALF_PAIR_AT, pair::<L>(zero, halves[0])),
            (HALF_PAIR_AT + HALF_STEP, pair::<L>(zero, halves[1])),
            (HALF_SUM_AT, total::<L>(scale, halves[0], half_zeros)),
            (HALF_SUM_AT + HALF_STEP, total::<L>(scale, halves[1], half_zeros)),
        ] {
            if ROWS {
                L::istore(records.add(at).cast(), words);
            } else {
                let mut of_blocks = [0; TOGETHER];
                L::istore(of_blocks.as_mut_ptr(), words);
                for (i, word) in of_blocks[..x.len()].iter().enumerate() {
                    records.add(i * RECORD + at).cast::<i32>().add(t).write_unaligned(*word);
                }
            }
        }
    }
}

/// Zero points beside what makes up for the codes' offset, of blocks whose codes have these sums.
#[inline(always)]
unsafe fn pair<L: Lane>(zero: L::I, sum: L::I) -> L::I {
    // SAFETY: the features are the caller's word.
    unsafe { L::iadd(L::iand(zero, L::isplat(0xFFFF)), L::ishl::<16>(L::isub(L::isplat(0), sum))) }
}

/// Sums of rounded elements, from those of their codes and of their zero points.
#[inline(always)]
unsafe fn total<L: Lane>(scale: L::F, codes: L::I, zeros: L::I) -> L::I {
    // SAFETY: the features are the caller's word.
    unsafe { L::bits(L::mul(scale, L::float(L::iadd(codes, zeros)))) }
}

/// Of each block: the greatest magnitude (NaN where there is one), the least element and the greatest.
struct Ranges {
    magnitude: [f32; TOGETHER],
    low: [f32; TOGETHER],
    high: [f32; TOGETHER],
}

/// What blocks are rounded with.
struct Steps {
    scale: [f32; TOGETHER],
    /// 1 / scale; zero for a block that counts as zeros, or has no finite range.
    inverse: [f32; TOGETHER],
    zero: [i32; TOGETHER],
}

impl Ranges {
    #[inline(always)]
    unsafe fn steps<L: Lane>(&self) -> Steps {
        let mut steps = Steps { scale: [0.0; TOGETHER], inverse: [0.0; TOGETHER], zero: [0; TOGETHER] };
        // SAFETY: sixteen elements each.
        unsafe {
            let (low, high) = (L::load(self.low.as_ptr()), L::load(self.high.as_ptr()));
            // 253 steps leave half a step at either end for the rounding of the zero point. A narrow range far from zero
            // keeps a relative precision of 1/8192, which bounds the zero point.
            let n_steps = L::splat(253.0);
            let step = L::sub(L::div(high, n_steps), L::div(low, n_steps));
            let least = L::mul(L::load(self.magnitude.as_ptr()), L::splat(1.0 / 4096.0));
            let scale = L::max(step, least);
            let half = L::splat(0.5);
            let center = L::div(L::add(L::mul(high, half), L::mul(low, half)), scale);
            let zero = L::isub(L::bits(L::add(center, L::splat(ROUND))), L::isplat(ROUND.to_bits() as i32));
            L::store(steps.scale.as_mut_ptr(), scale);
            L::store(steps.inverse.as_mut_ptr(), L::div(L::splat(1.0), scale));
            L::istore(steps.zero.as_mut_ptr(), zero);
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
