//! Whole rows of stored floats to blocks, fast and with a search for good scales: what quantizing a model while it is
//! loaded needs. Refuses to know whose weights they are and to share the work between threads.

use super::quantize::{inverse, put_f16, put_fifth_bits, put_nibbles};
use super::quantize_k::{put_k4_head, put_nibble_pairs, put_q6_k_codes, put_q6_k_scales};
use super::search::{BLOCKS, ROUND, scales, scales_and_mins, side_by_side, stored};
use super::{Format, dequantize_row, f16_at, quantize_row};
use crate::float_env::FlushToZero;
use crate::simd::{Isa, Lane, Task};

/// Goes up whenever [`quantize_rows`] gives other bytes than before, so that what was kept of it is made again.
pub const QUANTIZER_VERSION: u32 = 1;

/// Encodes rows of `cols` elements stored as `from` into `out`, as `to`. The bytes are the same on every lane.
///
/// Q8_0 is ggml's reference rounding. Q4_0, Q5_0, Q4_K and Q6_K try eleven steps between codes for every (sub-)block
/// and keep the scales of least squares; other formats are those of [`quantize_row`].
///
/// # Panics
/// When the lengths do not belong together, rows are not whole blocks of `to`, or this machine does not have the lane.
pub fn quantize_rows(isa: Isa, from: Format, to: Format, cols: usize, stored: &[u8], out: &mut [u8]) {
    assert!(Isa::available().contains(&isa), "this machine has no {} lane", isa.name());
    let bytes = |format: Format| format.bytes_of(cols).filter(|n| *n > 0);
    let (Some(from_bytes), Some(to_bytes)) = (bytes(from), bytes(to)) else {
        panic!("rows of {cols} from {} to {}", from.name(), to.name())
    };
    assert!(stored.len().is_multiple_of(from_bytes) && stored.len() / from_bytes * to_bytes == out.len());
    let _flush = FlushToZero::new();
    let task = QuantizeRows { from, to, cols, stored, out, from_bytes, to_bytes };
    // SAFETY: the lane is this machine's; the task reads and writes through slices.
    unsafe { isa.run(task) }
}

struct QuantizeRows<'a> {
    from: Format,
    to: Format,
    cols: usize,
    stored: &'a [u8],
    out: &'a mut [u8],
    from_bytes: usize,
    to_bytes: usize,
}

impl Task for QuantizeRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        // Blocks that a row lacks of the sixteen that are searched together are zeros.
        let mut x = vec![0.0; self.cols.next_multiple_of(BLOCKS * 32)];
        let rows = self.stored.chunks_exact(self.from_bytes).zip(self.out.chunks_exact_mut(self.to_bytes));
        for (stored, out) in rows {
            // SAFETY: the features are the caller's word.
            unsafe {
                widen::<L>(self.from, stored, &mut x[..self.cols]);
                match self.to {
                    Format::Q8_0 => {
                        let blocks = x.chunks_exact(32).zip(out.chunks_exact_mut(34));
                        for (x, out) in blocks {
                            q8_0::<L>(x, out);
                        }
                    }
                    Format::Q4_0 | Format::Q5_0 => simple::<L>(self.to, &x, out),
                    Format::Q4_K => q4_k::<L>(&x, out),
                    Format::Q6_K => q6_k::<L>(&x, out),
                    _ => quantize_row(self.to, &x[..self.cols], out),
                }
            }
        }
    }
}

/// One row in f32.
#[inline(always)]
unsafe fn widen<L: Lane>(from: Format, stored: &[u8], out: &mut [f32]) {
    let n_vectors = match from {
        Format::F16 | Format::BF16 => out.len() / 16,
        _ => 0,
    };
    let (whole, rest) = out.split_at_mut(16 * n_vectors);
    for (stored, out) in stored.chunks_exact(32).zip(whole.chunks_exact_mut(16)) {
        // SAFETY: sixteen elements each; the features are the caller's word.
        unsafe {
            let x = match from {
                Format::F16 => L::load_f16(stored.as_ptr().cast()),
                _ => L::load_bf16(stored.as_ptr().cast()),
            };
            L::store(out.as_mut_ptr(), x);
        }
    }
    dequantize_row(from, &stored[32 * n_vectors..], rest);
}

/// The codes of one block (of 16 or 32 elements): the nearest in `0..=max_code` to `(x + offset) / scale`.
///
/// # Safety
/// The lane's features must be there.
#[inline(always)]
unsafe fn put_codes<L: Lane>(x: &[f32], (scale, offset): (f32, f32), max_code: f32, codes: &mut [u8]) {
    for (x, codes) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)) {
        // SAFETY: sixteen elements each; the features are the caller's word.
        unsafe {
            let x = L::add(L::load(x.as_ptr()), L::splat(offset));
            let q = L::mul(x, L::splat(inverse(scale)));
            let q = L::min(L::max(q, L::splat(0.0)), L::splat(max_code));
            L::istore_i8(codes.as_mut_ptr().cast(), integer::<L>(q));
        }
    }
}

/// The block that `quantize_row` gives: halves are rounded away from zero.
#[inline(always)]
unsafe fn q8_0<L: Lane>(x: &[f32], out: &mut [u8]) {
    // SAFETY: two vectors of sixteen elements each; the features are the caller's word.
    unsafe {
        let (low, high) = (L::load(x.as_ptr()), L::load(x[16..].as_ptr()));
        let largest = stored::<L>(L::max(size::<L>(low), size::<L>(high)));
        let d = largest.iter().fold(0.0, |most: f32, x| if *x > most { *x } else { most }) / 127.0;
        put_f16(out, 0, d);
        let per_x = L::splat(inverse(d));
        L::istore_i8(out[2..].as_mut_ptr().cast(), rounded::<L>(L::mul(low, per_x)));
        L::istore_i8(out[18..].as_mut_ptr().cast(), rounded::<L>(L::mul(high, per_x)));
    }
}

/// The absolute value.
#[inline(always)]
unsafe fn size<L: Lane>(x: L::F) -> L::F {
    // SAFETY: no memory is touched.
    unsafe { L::max(x, L::sub(L::splat(0.0), x)) }
}

/// The nearest integers, halves to even.
#[inline(always)]
unsafe fn integer<L: Lane>(x: L::F) -> L::I {
    // SAFETY: no memory is touched.
    unsafe { L::isub(L::bits(L::add(x, L::splat(ROUND))), L::isplat(ROUND.to_bits() as i32)) }
}

/// The nearest integers up to 127 in size, halves away from zero; 127 for NaN.
#[inline(always)]
unsafe fn rounded<L: Lane>(x: L::F) -> L::I {
    // SAFETY: no memory is touched.
    unsafe {
        let size = L::min(size::<L>(x), L::splat(127.0));
        let even = L::sub(L::add(size, L::splat(ROUND)), L::splat(ROUND));
        // 1 where a half was rounded down to even; else 0, since nothing lies closer to a half than 2⁻²⁵.
        let below = L::sub(L::sub(size, even), L::splat(0.5));
        let lift = L::add(L::mul(below, L::splat((1 << 25) as f32)), L::splat(1.0));
        let whole = L::bits(L::add(even, L::max(lift, L::splat(0.0))));
        integer::<L>(L::from_bits(L::iadd(whole, L::iand(L::bits(x), L::isplat(i32::MIN)))))
    }
}

/// Blocks of 32 with one scale: Q4_0 and Q5_0.
#[inline(always)]
unsafe fn simple<L: Lane>(to: Format, x: &[f32], out: &mut [u8]) {
    let half = if to == Format::Q4_0 { 8.0 } else { 16.0 };
    let block_bytes = to.block_bytes();
    let mut codes = [0; 32];
    for (x, out) in x.chunks_exact(BLOCKS * 32).zip(out.chunks_mut(BLOCKS * block_bytes)) {
        // SAFETY: the features are the caller's word.
        let scales = unsafe { scales::<L, 32>(&side_by_side(x), half) };
        for ((x, out), scale) in x.chunks_exact(32).zip(out.chunks_exact_mut(block_bytes)).zip(scales) {
            put_f16(out, 0, scale);
            let scale = f16_at(out, 0);
            // SAFETY: as above.
            unsafe { put_codes::<L>(x, (scale, half * scale), 2.0 * half - 1.0, &mut codes) };
            let nibbles_at = block_bytes - 16;
            put_nibbles(&mut out[nibbles_at..], |j| codes[j]);
            if to == Format::Q5_0 {
                put_fifth_bits(&mut out[2..6], |j| codes[j]);
            }
        }
    }
}

#[inline(always)]
unsafe fn q4_k<L: Lane>(x: &[f32], out: &mut [u8]) {
    let block_bytes = Format::Q4_K.block_bytes();
    for (x, out) in x.chunks_exact(BLOCKS * 32).zip(out.chunks_mut(2 * block_bytes)) {
        // SAFETY: the features are the caller's word.
        let (scales, mins) = unsafe { scales_and_mins::<L, 32>(&side_by_side(x), 15.0) };
        for (i, (x, out)) in x.chunks_exact(256).zip(out.chunks_exact_mut(block_bytes)).enumerate() {
            let pairs = put_k4_head(std::array::from_fn(|j| (scales[8 * i + j], mins[8 * i + j])), out);
            // SAFETY: as above.
            let codes = unsafe { codes::<L, 8>(x, pairs, 15.0) };
            put_nibble_pairs(&mut out[16..], &codes);
        }
    }
}

#[inline(always)]
unsafe fn q6_k<L: Lane>(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(256).zip(out.chunks_exact_mut(Format::Q6_K.block_bytes())) {
        // SAFETY: the features are the caller's word.
        unsafe {
            let pairs = put_q6_k_scales(scales::<L, 16>(&side_by_side(x), 32.0), out);
            put_q6_k_codes(&codes::<L, 16>(x, pairs, 63.0), out);
        }
    }
}

/// The codes of a superblock of `N` sub-blocks.
#[inline(always)]
unsafe fn codes<L: Lane, const N: usize>(x: &[f32], pairs: [(f32, f32); N], max_code: f32) -> [u8; 256] {
    let mut codes = [0; 256];
    for ((x, codes), pair) in x.chunks_exact(256 / N).zip(codes.chunks_exact_mut(256 / N)).zip(pairs) {
        // SAFETY: the features are the caller's word.
        unsafe { put_codes::<L>(x, pair, max_code, codes) };
    }
    codes
}
