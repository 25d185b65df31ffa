//! Formats of superblocks of 256 whose sub-blocks have integer scales: Q2_K to Q6_K and IQ4_XS. Encoders have
//! one plain scale a sub-block.

pub(super) mod iq4_xs;
pub(super) mod q2_k;
pub(super) mod q3_k;
pub(crate) mod q4_k;
pub(super) mod q5_k;
pub(crate) mod q6_k;

use super::bits::{f16_at, put_f16};
use super::range::{extreme, inverse, min_max};
use crate::layout::BLOCK;

/// Bit fields of 32 consecutive bytes.
fn fields(bytes: &[u8], shift: usize, mask: u8) -> [u8; BLOCK] {
    let bytes: &[u8; BLOCK] = bytes.first_chunk().expect("inside the superblock");
    bytes.map(|byte| byte >> shift & mask)
}

/// Codes of two bits of block `b`: four blocks share 32 bytes.
fn two_bits(bytes: &[u8], b: usize) -> [u8; BLOCK] {
    fields(&bytes[b / 4 * BLOCK..], b % 4 * 2, 3)
}

/// Codes of four bits of block `b`: two blocks share 32 bytes.
fn nibbles(bytes: &[u8], b: usize) -> [u8; BLOCK] {
    fields(&bytes[b / 2 * BLOCK..], b % 2 * 4, 15)
}

/// Codes whose bits from `shift` on are `high`.
fn joined(low: [u8; BLOCK], high: [u8; BLOCK], shift: usize) -> [u8; BLOCK] {
    std::array::from_fn(|i| low[i] | high[i] << shift)
}

/// Scales and (non-negative) mins of `N` sub-blocks, each from its range: `x ≈ scale code - min` with codes
/// up to `max_code`.
fn plain_pairs<const N: usize>(x: &[f32], max_code: f32) -> [(f32, f32); N] {
    std::array::from_fn(|j| {
        let (min, max) = min_max(&x[j * 256 / N..][..256 / N]);
        let min = min.min(0.0);
        ((max.max(min) - min) / max_code, -min)
    })
}

/// Quantizes the sub-blocks' scales and mins to integers up to `max`, stores d and dmin at `at`, and returns
/// the integers.
fn integer_scales<const N: usize>(
    pairs: [(f32, f32); N],
    max: f32,
    out: &mut [u8],
    at: usize,
) -> [(u8, u8); N] {
    let d = pairs.iter().fold(0.0f32, |a, p| a.max(p.0)) / max;
    let dmin = pairs.iter().fold(0.0f32, |a, p| a.max(p.1)) / max;
    put_f16(out, at, d);
    put_f16(out, at + 2, dmin);
    pairs.map(|(scale, min)| {
        let round = |v: f32, d: f32| (v * inverse(d)).round().clamp(0.0, max) as u8;
        (round(scale, d), round(min, dmin))
    })
}

/// Scales of `N` sub-blocks whose extreme value maps to `extreme_code`.
fn plain_scales<const N: usize>(x: &[f32], extreme_code: f32) -> [f32; N] {
    std::array::from_fn(|j| extreme(&x[j * 256 / N..][..256 / N]) / extreme_code)
}

/// Signed integer scales of `N` sub-blocks, and the f16 d stored at `at`.
fn signed_scales<const N: usize>(scales: [f32; N], max: f32, out: &mut [u8], at: usize) -> ([i8; N], f32) {
    put_f16(out, at, extreme(&scales) / -max);
    let d = f16_at(out, at);
    (scales.map(|s| (s * inverse(d)).round().clamp(-max, max - 1.0) as i8), d)
}

/// The codes of `N` sub-blocks: the nearest in `0..=max_code` to `(x + offset) / scale`, by pairs of those.
fn codes<const N: usize>(x: &[f32], pairs: [(f32, f32); N], max_code: f32) -> [u8; 256] {
    let mut codes = [0; 256];
    let blocks = codes.chunks_exact_mut(256 / N).zip(x.chunks_exact(256 / N));
    for ((codes, x), (scale, offset)) in blocks.zip(pairs) {
        let inverse = inverse(scale);
        for (code, x) in codes.iter_mut().zip(x) {
            *code = ((x + offset) * inverse).round().clamp(0.0, max_code) as u8;
        }
    }
    codes
}

/// Scatters the lowest two bits so that 32 bytes hold 128 elements in 2-bit layers.
fn put_two_bits(out: &mut [u8], codes: &[u8; 256]) {
    for (i, code) in codes.iter().enumerate() {
        out[i / 128 * 32 + i % 32] |= (code & 3) << (2 * (i % 128 / 32));
    }
}

/// Scatters bit `from` so that bit `j` of byte `l` belongs to element `32 j + l`.
fn put_high_bits(out: &mut [u8], codes: &[u8; 256], from: usize) {
    for (i, code) in codes.iter().enumerate() {
        out[i % 32] |= (code >> from & 1) << (i / 32);
    }
}
