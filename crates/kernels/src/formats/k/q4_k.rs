//! Q4_K: `x = d s q - dmin m` per 32; f16 d, f16 dmin, 8 × (6-bit s, 6-bit m), nibbles in pairs of
//! sub-blocks.

use super::{codes, integer_scales, nibbles, plain_pairs};
use crate::formats::bits::{f16_at, pair};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{BLOCK, CodeLayout};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(12),
    block_elements: 256,
    block_bytes: 144,
    elements: Elements::Codes(CodeLayout::Q4_K, |s, b| block(s, b, nibbles(&s[16..], b))),
    encode: |x, out| {
        let pairs = put_head(plain_pairs(x, 15.0), out);
        put_nibble_pairs(&mut out[16..], &codes(x, pairs, 15.0));
    },
};

/// Block `b` of a superblock with the head of Q4_K: d, dmin and 12 bytes of scales and mins.
pub(super) fn block(s: &[u8], b: usize, codes: [u8; BLOCK]) -> BlockCodes {
    let (superscales, s) = ([pair(s, 0), pair(s, 2)], &s[4..16]);
    let (scale, min) = if b < 4 {
        (s[b] & 63, s[b + 4] & 63)
    } else {
        (s[b + 4] & 15 | s[b - 4] >> 6 << 4, s[b + 4] >> 4 | s[b] >> 6 << 4)
    };
    BlockCodes { codes, scales: [[scale, 0], [min, 0]], superscales }
}

/// Writes the head of a superblock of Q4_K or Q5_K with about these scales and mins, and returns the stored
/// ones.
pub(crate) fn put_head(pairs: [(f32, f32); 8], out: &mut [u8]) -> [(f32, f32); 8] {
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

/// Writes nibbles so that 32 bytes hold one sub-block low and the next high.
#[inline(always)]
pub(crate) fn put_nibble_pairs(out: &mut [u8], codes: &[u8; 256]) {
    for (out, codes) in out.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[i] & 15 | (codes[i + 32] & 15) << 4;
        }
    }
}
