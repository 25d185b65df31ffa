//! The left side of a product: rows of activations in the form that the tiles read. Refuses to know weights.
//!
//! Quantized rows have one scale for 32 elements (finer than ggml's Q8_K, one for 256, and kept in f32), so they are
//! rounded once a call, whatever the number of matrices they meet. A NaN or infinity makes its whole block's scale NaN, and
//! so every output of that row: it is never silently rounded to a number.

use crate::memory::{AlignedBytes, Disjoint};
use crate::quant::BLOCK;
use crate::simd::{Lane, Task};
use crate::threads::ThreadPool;

/// Tokens that lie interleaved, block by block.
pub(crate) const GROUP: usize = 4;
/// Bytes of a group's quantized block: 4 × 32 codes, then the arrays below, four values each.
pub(crate) const RECORD: usize = 256;
/// f32 scales.
pub(crate) const SCALE_AT: usize = 128;
/// i32 `-128 Σ codes`: what offset weight codes add too much.
pub(crate) const OFFSET_AT: usize = 144;
/// f32 `scale Σ codes`: what a weight block's min is multiplied by.
pub(crate) const SUM_AT: usize = 160;
/// The offsets of the two half blocks.
pub(crate) const HALF_OFFSET_AT: usize = 176;
/// The sums of the two half blocks.
pub(crate) const HALF_SUM_AT: usize = 208;
/// Bytes of a group's float block: [4][32] f32.
pub(crate) const FLOAT_RECORD: usize = GROUP * BLOCK * 4;

/// Below this magnitude (2^-100) a block counts as zeros: its scale's inverse would leave the floats' range.
const SMALLEST: f32 = 7.888_609e-31;

/// Rows of activations, ready for products with any number of matrices. Keeps its memory between uses.
#[derive(Debug, Default)]
pub struct Activations {
    n_rows: usize,
    cols: usize,
    ints: Option<AlignedBytes>,
    floats: Option<AlignedBytes>,
    has_ints: bool,
    has_floats: bool,
}

impl Activations {
    /// Rows it holds.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Takes the rows of `x`, `[n, cols]`, quantized for quantized matrices, as they are for float matrices, or both.
    ///
    /// # Panics
    /// When `x` is not whole rows, and when there is no memory for them.
    pub fn set(&mut self, x: &[f32], cols: usize, ints: bool, floats: bool, pool: &ThreadPool) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "rows of {cols} in {}", x.len());
        (self.n_rows, self.cols, self.has_ints, self.has_floats) = (x.len() / cols, cols, ints, floats);
        let n_groups = self.n_rows.div_ceil(GROUP);
        let n_blocks = cols.div_ceil(BLOCK);
        let prepare = |buffer: &mut Option<AlignedBytes>, record: usize| {
            let wanted = n_groups * n_blocks * record;
            if buffer.as_ref().is_none_or(|b| b.as_slice().len() < wanted) {
                *buffer = AlignedBytes::zeroed(wanted);
            }
            assert!(buffer.is_some(), "no memory for {wanted} bytes of activations");
        };
        if ints {
            prepare(&mut self.ints, RECORD);
        }
        if floats {
            prepare(&mut self.floats, FLOAT_RECORD);
        }
        for (wanted, buffer, record) in
            [(ints, &mut self.ints, RECORD), (floats, &mut self.floats, FLOAT_RECORD)]
        {
            let Some(buffer) = buffer.as_mut().filter(|_| wanted) else { continue };
            let groups = Disjoint::new(buffer.as_mut_slice());
            let group = |g: usize| {
                let rows = &x[g * GROUP * cols..x.len().min((g + 1) * GROUP * cols)];
                // SAFETY: each group is one item's.
                let out = unsafe { groups.part(g * n_blocks * record, n_blocks * record) };
                if record == RECORD {
                    // SAFETY: the pool's lane is available.
                    unsafe { pool.isa().run(Quantize { rows, cols, out }) }
                } else {
                    interleave(rows, cols, out);
                }
            };
            if self.n_rows * cols < 16_384 {
                pool.run_here(|| (0..n_groups).for_each(group));
            } else {
                pool.for_each(n_groups, group);
            }
        }
    }

    /// Where group `g`'s records begin; `None` when the rows were not kept in this form.
    pub(crate) fn records(&self, g: usize, ints: bool) -> Option<&[u8]> {
        let (buffer, kept, record) = if ints {
            (&self.ints, self.has_ints, RECORD)
        } else {
            (&self.floats, self.has_floats, FLOAT_RECORD)
        };
        let n_bytes = self.cols.div_ceil(BLOCK) * record;
        buffer.as_ref().filter(|_| kept).map(|b| &b.as_slice()[g * n_bytes..][..n_bytes])
    }
}

/// Up to four rows to a group's float records.
fn interleave(rows: &[f32], cols: usize, out: &mut [u8]) {
    for (t, row) in rows.chunks_exact(cols).enumerate() {
        for (b, x) in row.chunks(BLOCK).enumerate() {
            let out: &mut [u8] = &mut out[b * FLOAT_RECORD + t * BLOCK * 4..][..BLOCK * 4];
            out[..x.len() * 4].copy_from_slice(bytemuck::cast_slice(x));
            out[x.len() * 4..].fill(0);
        }
    }
}

/// Up to four rows to a group's quantized records; rows that are not there stay what they were.
struct Quantize<'a> {
    rows: &'a [f32],
    cols: usize,
    out: &'a mut [u8],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        for (t, row) in self.rows.chunks_exact(self.cols).enumerate() {
            for (b, x) in row.chunks(BLOCK).enumerate() {
                let record = &mut self.out[b * RECORD..][..RECORD];
                let mut padded = [0.0; BLOCK];
                let x = if x.len() == BLOCK {
                    x
                } else {
                    padded[..x.len()].copy_from_slice(x);
                    &padded
                };
                // SAFETY: `x` has 32 elements and the record its size; the features are the caller's word.
                unsafe { quantize_block::<L>(x.as_ptr(), t, record.as_mut_ptr()) };
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn quantize_block<L: Lane>(x: *const f32, t: usize, record: *mut u8) {
    /// Adding it rounds to the nearest integer (even in a tie), which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: 32 floats at `x`, a record at `record`, `t` below four.
    unsafe {
        let (a, b) = (L::load(x), L::load(x.add(16)));
        let magnitude = |v| L::iand(L::bits(v), L::isplat(i32::MAX));
        let mut bits = [0i32; 16];
        L::istore(bits.as_mut_ptr(), L::imax(magnitude(a), magnitude(b)));
        // As integers the magnitudes sort like the numbers, with NaN above infinity.
        let max = f32::from_bits(bits.iter().fold(0, |m, &v| m.max(v)) as u32);
        let (scale, inverse) = if max < SMALLEST {
            (0.0, 0.0)
        } else if max < f32::INFINITY {
            (max / 127.0, 127.0 / max)
        } else {
            (f32::NAN, 0.0)
        };
        let mut sums = [0i32; 2];
        for (half, v) in [a, b].into_iter().enumerate() {
            let rounded = L::add(L::mul(v, L::splat(inverse)), L::splat(ROUND));
            let mut codes = L::isub(L::bits(rounded), L::isplat(ROUND.to_bits() as i32));
            if scale.is_nan() {
                codes = L::isplat(0);
            }
            L::istore_i8(record.add(t * BLOCK + half * 16).cast(), codes);
            L::istore(bits.as_mut_ptr(), codes);
            sums[half] = bits.iter().sum();
        }
        let put = |at: usize, word: u32| record.add(at).cast::<u32>().add(t).write_unaligned(word);
        let sum = sums[0] + sums[1];
        put(SCALE_AT, scale.to_bits());
        put(OFFSET_AT, (-128 * sum) as u32);
        put(SUM_AT, (scale * sum as f32).to_bits());
        for (half, sum) in sums.into_iter().enumerate() {
            put(HALF_OFFSET_AT + half * 16, (-128 * sum) as u32);
            put(HALF_SUM_AT + half * 16, (scale * sum as f32).to_bits());
        }
    }
}
