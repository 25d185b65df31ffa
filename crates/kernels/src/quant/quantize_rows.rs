//! Quantizes whole rows of stored floats with a search for good scales, for quantization at load time.
//! Single-threaded.

use super::scale_search::{BLOCKS, ROUND, scales, scales_and_mins, side_by_side, stored};
use super::{Format, dequantize_row, quantize_row};
use crate::float_env::FlushToZero;
use crate::formats::k::{q4_k, q6_k};
use crate::formats::{f16_at, inverse, put_f16, put_fifth_bits, put_nibbles};
use crate::simd::{Isa, Kernel, SimdIsa};

/// Version of the output of [`quantize_rows`]: cached results of another version are discarded.
pub const QUANTIZER_VERSION: u32 = 1;

/// Encodes rows of `cols` elements stored as `from` into `out`, as `to`. The bytes are the same on every ISA.
///
/// Q8_0 uses ggml's reference rounding. Q4_0, Q5_0, Q4_K and Q6_K try eleven steps between codes for every
/// (sub-)block and keep the scales of least squares; other formats use [`quantize_row`].
///
/// # Panics
/// When the lengths do not match, or rows are not whole blocks of `to`.
pub fn quantize_rows(isa: Isa, from: Format, to: Format, cols: usize, stored: &[u8], out: &mut [u8]) {
    let bytes = |format: Format| format.bytes_of(cols).filter(|n| *n > 0);
    let (Some(from_bytes), Some(to_bytes)) = (bytes(from), bytes(to)) else {
        panic!("rows of {cols} from {} to {}", from.name(), to.name())
    };
    assert!(stored.len().is_multiple_of(from_bytes) && stored.len() / from_bytes * to_bytes == out.len());
    let _flush = FlushToZero::new();
    let kernel = QuantizeRows { from, to, cols, stored, out, from_bytes, to_bytes };
    // SAFETY: the kernel reads and writes through slices.
    unsafe { isa.run(kernel) }
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

impl Kernel for QuantizeRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // Blocks that a row lacks of the sixteen that are searched together are zeros.
        let mut x = vec![0.0; self.cols.next_multiple_of(BLOCKS * 32)];
        let rows = self.stored.chunks_exact(self.from_bytes).zip(self.out.chunks_exact_mut(self.to_bytes));
        for (stored, out) in rows {
            // SAFETY: the caller guarantees the features.
            unsafe {
                widen::<S>(self.from, stored, &mut x[..self.cols]);
                match self.to {
                    Format::Q8_0 => {
                        let blocks = x.chunks_exact(32).zip(out.chunks_exact_mut(34));
                        for (x, out) in blocks {
                            q8_0::<S>(x, out);
                        }
                    }
                    Format::Q4_0 | Format::Q5_0 => simple::<S>(self.to, &x, out),
                    Format::Q4_K => with_mins::<S>(&x, out),
                    Format::Q6_K => six_bits::<S>(&x, out),
                    _ => quantize_row(self.to, &x[..self.cols], out),
                }
            }
        }
    }
}

/// Converts one row to f32.
#[inline(always)]
unsafe fn widen<S: SimdIsa>(from: Format, stored: &[u8], out: &mut [f32]) {
    let n_vectors = match from {
        Format::F16 | Format::BF16 => out.len() / 16,
        _ => 0,
    };
    let (whole, rest) = out.split_at_mut(16 * n_vectors);
    for (stored, out) in stored.chunks_exact(32).zip(whole.chunks_exact_mut(16)) {
        // SAFETY: sixteen elements each; the caller guarantees the features.
        unsafe {
            let x = match from {
                Format::F16 => S::load_f16(stored.as_ptr().cast()),
                _ => S::load_bf16(stored.as_ptr().cast()),
            };
            S::store(out.as_mut_ptr(), x);
        }
    }
    dequantize_row(from, &stored[32 * n_vectors..], rest);
}

/// The codes of one block (of 16 or 32 elements): the nearest in `0..=max_code` to `(x + offset) / scale`.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn put_codes<S: SimdIsa>(x: &[f32], scale: f32, offset: f32, max_code: f32, codes: &mut [u8]) {
    for (x, codes) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)) {
        // SAFETY: sixteen elements each; the caller guarantees the features.
        unsafe {
            let x = S::add(S::load(x.as_ptr()), S::splat(offset));
            let q = S::mul(x, S::splat(inverse(scale)));
            let q = S::min(S::max(q, S::splat(0.0)), S::splat(max_code));
            S::istore_i8(codes.as_mut_ptr().cast(), integer::<S>(q));
        }
    }
}

/// The block that `quantize_row` writes: halves are rounded away from zero.
#[inline(always)]
unsafe fn q8_0<S: SimdIsa>(x: &[f32], out: &mut [u8]) {
    // SAFETY: two vectors of sixteen elements each; the caller guarantees the features.
    unsafe {
        let (low, high) = (S::load(x.as_ptr()), S::load(x[16..].as_ptr()));
        let largest = stored::<S>(S::max(size::<S>(low), size::<S>(high)));
        let d = largest.iter().fold(0.0, |most: f32, x| if *x > most { *x } else { most }) / 127.0;
        put_f16(out, 0, d);
        let per_x = S::splat(inverse(d));
        S::istore_i8(out[2..].as_mut_ptr().cast(), rounded::<S>(S::mul(low, per_x)));
        S::istore_i8(out[18..].as_mut_ptr().cast(), rounded::<S>(S::mul(high, per_x)));
    }
}

/// Absolute value of each element.
#[inline(always)]
unsafe fn size<S: SimdIsa>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe { S::max(x, S::sub(S::splat(0.0), x)) }
}

/// The nearest integers, halves to even.
#[inline(always)]
unsafe fn integer<S: SimdIsa>(x: S::F) -> S::I {
    // SAFETY: no memory is touched.
    unsafe { S::isub(S::bits(S::add(x, S::splat(ROUND))), S::isplat(ROUND.to_bits() as i32)) }
}

/// The nearest integers up to 127 in size, halves away from zero; 127 for NaN.
#[inline(always)]
unsafe fn rounded<S: SimdIsa>(x: S::F) -> S::I {
    // SAFETY: no memory is touched.
    unsafe {
        let size = S::min(size::<S>(x), S::splat(127.0));
        let even = S::sub(S::add(size, S::splat(ROUND)), S::splat(ROUND));
        // 1 where a half was rounded down to even; else 0, since nothing lies closer to a half than 2⁻²⁵.
        let below = S::sub(S::sub(size, even), S::splat(0.5));
        let lift = S::add(S::mul(below, S::splat((1 << 25) as f32)), S::splat(1.0));
        let whole = S::bits(S::add(even, S::max(lift, S::splat(0.0))));
        integer::<S>(S::from_bits(S::iadd(whole, S::iand(S::bits(x), S::isplat(i32::MIN)))))
    }
}

/// Blocks of 32 with one scale: Q4_0 and Q5_0.
#[inline(always)]
unsafe fn simple<S: SimdIsa>(to: Format, x: &[f32], out: &mut [u8]) {
    let half = if to == Format::Q4_0 { 8.0 } else { 16.0 };
    let block_bytes = to.block_bytes();
    let mut codes = [0; 32];
    for (x, out) in x.chunks_exact(BLOCKS * 32).zip(out.chunks_mut(BLOCKS * block_bytes)) {
        // SAFETY: the caller guarantees the features.
        let scales = unsafe { scales::<S, 32>(&side_by_side(x), half) };
        for ((x, out), scale) in x.chunks_exact(32).zip(out.chunks_exact_mut(block_bytes)).zip(scales) {
            put_f16(out, 0, scale);
            let scale = f16_at(out, 0);
            // SAFETY: the caller guarantees the features.
            unsafe { put_codes::<S>(x, scale, half * scale, 2.0 * half - 1.0, &mut codes) };
            let nibbles_at = block_bytes - 16;
            put_nibbles(&mut out[nibbles_at..], |j| codes[j]);
            if to == Format::Q5_0 {
                put_fifth_bits(&mut out[2..6], |j| codes[j]);
            }
        }
    }
}

/// Superblocks with scales and mins: Q4_K.
#[inline(always)]
unsafe fn with_mins<S: SimdIsa>(x: &[f32], out: &mut [u8]) {
    let block_bytes = Format::Q4_K.block_bytes();
    for (x, out) in x.chunks_exact(BLOCKS * 32).zip(out.chunks_mut(2 * block_bytes)) {
        // SAFETY: the caller guarantees the features.
        let (scales, mins) = unsafe { scales_and_mins::<S, 32>(&side_by_side(x), 15.0) };
        for (i, (x, out)) in x.chunks_exact(256).zip(out.chunks_exact_mut(block_bytes)).enumerate() {
            let pairs = q4_k::put_head(std::array::from_fn(|j| (scales[8 * i + j], mins[8 * i + j])), out);
            // SAFETY: the caller guarantees the features.
            let codes = unsafe { codes::<S, 8>(x, pairs, 15.0) };
            q4_k::put_nibble_pairs(&mut out[16..], &codes);
        }
    }
}

/// Superblocks of six bits: Q6_K.
#[inline(always)]
unsafe fn six_bits<S: SimdIsa>(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.chunks_exact(256).zip(out.chunks_exact_mut(Format::Q6_K.block_bytes())) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let pairs = q6_k::put_scales(scales::<S, 16>(&side_by_side(x), 32.0), out);
            q6_k::put_codes(&codes::<S, 16>(x, pairs, 63.0), out);
        }
    }
}

/// The codes of a superblock of `N` sub-blocks.
#[inline(always)]
unsafe fn codes<S: SimdIsa, const N: usize>(x: &[f32], pairs: [(f32, f32); N], max_code: f32) -> [u8; 256] {
    let mut codes = [0; 256];
    for ((x, codes), (scale, offset)) in
        x.chunks_exact(256 / N).zip(codes.chunks_exact_mut(256 / N)).zip(pairs)
    {
        // SAFETY: the caller guarantees the features.
        unsafe { put_codes::<S>(x, scale, offset, max_code, codes) };
    }
    codes
}
