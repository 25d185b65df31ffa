//! Superblocks of 256 to f32: Q2_K … Q6_K and IQ4_XS (layouts of ggml-common.h). Does not know rows.

use super::{IQ4_VALUES, f16_at};

/// The 6-bit scale and min of sub-block `j` (of eight) of a Q4_K or Q5_K superblock's 12 scale bytes.
pub(crate) fn q4_k_scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    }
}

/// The signed 6-bit scale of sub-block `j` (of sixteen) of a Q3_K superblock's 12 scale bytes, in -32..32.
pub(crate) fn q3_k_scale(s: &[u8], j: usize) -> i8 {
    let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
    let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// `x = d s q - dmin m` per 16; 16 × (4-bit s, 4-bit m), 2-bit q, f16 d, f16 dmin.
pub(super) fn q2_k(b: &[u8], out: &mut [f32]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for (j, out) in out.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[j] & 15), dmin * f32::from(scales[j] >> 4));
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(two_bits(qs, 16 * j + l)) - min;
        }
    }
}

/// Element `i`'s two bits, where each 32 bytes hold 128 elements in four 2-bit layers (Q2_K and Q3_K).
pub(crate) fn two_bits(qs: &[u8], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3
}

/// `x = d s (q - 4)` per 16; third bits, 2-bit layers, 16 signed 6-bit s in 12 bytes, f16 d.
pub(super) fn q3_k(b: &[u8], out: &mut [f32]) {
    let (high, qs, scales, d) = (&b[..32], &b[32..96], &b[96..108], f16_at(b, 108));
    for (j, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(q3_k_scale(scales, j));
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q3_k_code(high, qs, 16 * j + l) as i8 - 4);
        }
    }
}

/// Element `i`'s three bits of a Q3_K superblock (value + 4).
pub(crate) fn q3_k_code(high: &[u8], qs: &[u8], i: usize) -> u8 {
    two_bits(qs, i) | (high[i % 32] >> (i / 32) & 1) << 2
}

/// `x = d s q - dmin m` per 32; f16 d, f16 dmin, 8 × (6-bit s, 6-bit m), nibbles in pairs of sub-blocks.
pub(super) fn q4_k(b: &[u8], out: &mut [f32]) {
    let (scales, qs) = (&b[4..16], &b[16..144]);
    scaled_and_shifted(b, scales, out, |i| nibble(qs, i));
}

/// As Q4_K with a fifth bit: bit `j` of byte `l` belongs to element `32 j + l`.
pub(super) fn q5_k(b: &[u8], out: &mut [f32]) {
    let (scales, high, qs) = (&b[4..16], &b[16..48], &b[48..176]);
    scaled_and_shifted(b, scales, out, |i| q5_k_code(high, qs, i));
}

/// Element `i`'s five bits of a Q5_K superblock.
pub(crate) fn q5_k_code(high: &[u8], qs: &[u8], i: usize) -> u8 {
    nibble(qs, i) | (high[i % 32] >> (i / 32) & 1) << 4
}

/// Element `i`'s nibble, where each 32 bytes hold one sub-block in the low nibbles and the next in the high ones.
pub(crate) fn nibble(qs: &[u8], i: usize) -> u8 {
    qs[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15
}

fn scaled_and_shifted(b: &[u8], scales: &[u8], out: &mut [f32], code: impl Fn(usize) -> u8) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = q4_k_scale_min(scales, j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(code(32 * j + l)) - min;
        }
    }
}

/// `x = d s (q - 32)` per 16; low nibbles, 2-bit layers, 16 × i8 s, f16 d.
pub(super) fn q6_k(b: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], f16_at(b, 208));
    for (j, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[j] as i8);
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q6_k_code(low, high, 16 * j + l) as i8 - 32);
        }
    }
}

/// Element `i`'s six bits of a Q6_K superblock (value + 32).
pub(crate) fn q6_k_code(low: &[u8], high: &[u8], i: usize) -> u8 {
    let nibble = low[i / 128 * 64 + i % 64] >> (4 * (i % 128 / 64)) & 15;
    nibble | two_bits(high, i) << 4
}

/// The signed 6-bit scale of sub-block `j` (of eight) of an IQ4_XS superblock, in -32..32.
pub(crate) fn iq4_xs_scale(b: &[u8], j: usize) -> i8 {
    let high = u16::from_le_bytes([b[2], b[3]]) >> (2 * j) & 3;
    let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
    (low | (high as u8) << 4) as i8 - 32
}

/// `x = d s values[q]` per 32; f16 d, 8 signed 6-bit s, nibbles into the code book.
pub(super) fn iq4_xs(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let scale = d * f32::from(iq4_xs_scale(b, j));
        for (l, &q) in b[8 + 16 * j..][..16].iter().enumerate() {
            out[l] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
            out[l + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
        }
    }
}
