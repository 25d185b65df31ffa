//! f32 to superblocks of 256: Q2_K … Q6_K and IQ4_XS with one plain scale a sub-block. Does not know rows.

use super::{extreme, inverse, min_max, nearest_iq4, put_f16};
use crate::quant::{IQ4_VALUES, f16_at};

/// Scale and (non-negative) min of a sub-block whose codes go up to `max_code`: `x ≈ scale code - min`.
fn scale_and_min(x: &[f32], max_code: f32) -> (f32, f32) {
    let (min, max) = min_max(x);
    let min = min.min(0.0);
    ((max.max(min) - min) / max_code, -min)
}

/// Scales and mins of `N` sub-blocks, each from its range.
fn plain_pairs<const N: usize>(x: &[f32], max_code: f32) -> [(f32, f32); N] {
    std::array::from_fn(|j| scale_and_min(&x[j * 256 / N..][..256 / N], max_code))
}

/// Quantizes the sub-blocks' scales and mins to integers up to `max`, stores d and dmin at `at`, and returns the
/// integers.
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

/// The code in `0..=max_code` nearest to `x`.
fn code(x: f32, scale: f32, offset: f32, max_code: f32) -> u8 {
    ((x + offset) * inverse(scale)).round().clamp(0.0, max_code) as u8
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

/// Scatters bits so that 32 bytes hold 128 elements in 2-bit layers.
fn put_two_bits(out: &mut [u8], code: impl Fn(usize) -> u8) {
    for i in 0..256 {
        out[i / 128 * 32 + i % 32] |= (code(i) & 3) << (2 * (i % 128 / 32));
    }
}

/// Nibbles so that 32 bytes hold one sub-block low and the next high.
#[inline(always)]
pub(in crate::quant) fn put_nibble_pairs(out: &mut [u8], codes: &[u8; 256]) {
    for (out, codes) in out.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[i] & 15 | (codes[i + 32] & 15) << 4;
        }
    }
}

pub(in crate::quant) fn q2_k(x: &[f32], out: &mut [u8]) {
    out.fill(0);
    let pairs = integer_scales(plain_pairs::<16>(x, 3.0), 15.0, out, 80);
    let (d, dmin) = (f16_at(out, 80), f16_at(out, 82));
    for (j, (scale, min)) in pairs.into_iter().enumerate() {
        out[j] = scale | min << 4;
    }
    put_two_bits(&mut out[16..80], |i| {
        let (scale, min) = pairs[i / 16];
        code(x[i], d * f32::from(scale), dmin * f32::from(min), 3.0)
    });
}

/// Writes the head of a superblock of Q4_K or Q5_K with about these scales and mins, and gives those it holds.
pub(in crate::quant) fn put_k4_head(pairs: [(f32, f32); 8], out: &mut [u8]) -> [(f32, f32); 8] {
    let pairs = integer_scales(pairs, 63.0, out, 0);
    let s = &mut out[4..16];
    s.fill(0);
    for (j, &(scale, min)) in pairs.iter().enumerate() {
        if j < 4 {
            s[j] |= scale;
            s[j + 4] |= min;
        } else {
            s[j + 4] = scale & 15 | (min & 15) << 4;
            s[j - 4] |= scale >> 4 << 6;
            s[j] |= min >> 4 << 6;
        }
    }
    let (d, dmin) = (f16_at(out, 0), f16_at(out, 2));
    pairs.map(|(scale, min)| (d * f32::from(scale), dmin * f32::from(min)))
}

pub(in crate::quant) fn q4_k(x: &[f32], out: &mut [u8]) {
    let pairs = put_k4_head(plain_pairs(x, 15.0), out);
    put_nibble_pairs(&mut out[16..144], &codes(x, pairs, 15.0));
}

pub(in crate::quant) fn q5_k(x: &[f32], out: &mut [u8]) {
    let pairs = put_k4_head(plain_pairs(x, 31.0), out);
    let codes = codes(x, pairs, 31.0);
    out[16..48].fill(0);
    for (i, code) in codes.iter().enumerate() {
        out[16 + i % 32] |= (code >> 4 & 1) << (i / 32);
    }
    put_nibble_pairs(&mut out[48..176], &codes);
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

pub(in crate::quant) fn q3_k(x: &[f32], out: &mut [u8]) {
    out.fill(0);
    let (scales, d) = signed_scales(plain_scales::<16>(x, -4.0), 32.0, out, 108);
    for (j, scale) in scales.into_iter().enumerate() {
        let s = (scale + 32) as u8;
        out[96 + j % 8] |= (s & 15) << (4 * (j / 8));
        out[104 + j % 4] |= (s >> 4) << (2 * (j / 4));
    }
    let code = |i: usize| {
        let scale = d * f32::from(scales[i / 16]);
        code(x[i], scale, 4.0 * scale, 7.0)
    };
    for i in 0..256 {
        out[i % 32] |= (code(i) >> 2) << (i / 32);
    }
    put_two_bits(&mut out[32..96], code);
}

pub(in crate::quant) fn q6_k(x: &[f32], out: &mut [u8]) {
    let pairs = put_q6_k_scales(plain_scales(x, -32.0), out);
    put_q6_k_codes(&codes(x, pairs, 63.0), out);
}

/// Writes the scales of a superblock of Q6_K, about these, and gives those it holds, each with the offset of its codes.
pub(in crate::quant) fn put_q6_k_scales(scales: [f32; 16], out: &mut [u8]) -> [(f32, f32); 16] {
    let (scales, d) = signed_scales(scales, 128.0, out, 208);
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale as u8;
    }
    scales.map(|scale| d * f32::from(scale)).map(|scale| (scale, 32.0 * scale))
}

/// Writes the codes of a superblock of Q6_K.
#[inline(always)]
pub(in crate::quant) fn put_q6_k_codes(codes: &[u8; 256], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(128);
    let halves = low.chunks_exact_mut(64).zip(high.chunks_exact_mut(32)).zip(codes.chunks_exact(128));
    for ((low, high), codes) in halves {
        for (i, low) in low.iter_mut().enumerate() {
            *low = codes[i] & 15 | (codes[i + 64] & 15) << 4;
        }
        for (i, high) in high.iter_mut().enumerate() {
            *high = (0..4).fold(0, |byte, j| byte | codes[i + 32 * j] >> 4 << (2 * j));
        }
    }
}

pub(in crate::quant) fn iq4_xs(x: &[f32], out: &mut [u8]) {
    out.fill(0);
    let (scales, d) = signed_scales(plain_scales::<8>(x, f32::from(IQ4_VALUES[0])), 32.0, out, 0);
    let mut high = 0u16;
    for (j, scale) in scales.into_iter().enumerate() {
        let s = (scale + 32) as u8;
        out[4 + j / 2] |= (s & 15) << (4 * (j % 2));
        high |= u16::from(s >> 4) << (2 * j);
    }
    out[2..4].copy_from_slice(&high.to_le_bytes());
    for i in 0..256 {
        let scale = d * f32::from(scales[i / 32]);
        out[8 + i / 32 * 16 + i % 16] |= nearest_iq4(x[i] * inverse(scale)) << (4 * (i % 32 / 16));
    }
}
