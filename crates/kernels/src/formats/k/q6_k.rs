//! Q6_K: `x = d s (q - 32)` per 16; low nibbles, 2-bit layers, 16 × i8 s, f16 d.

use super::{codes, fields, joined, plain_scales, signed_scales, two_bits};
use crate::formats::bits::pair;
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{BLOCK, CodeLayout};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(14),
    block_elements: 256,
    block_bytes: 210,
    elements: Elements::Codes(CodeLayout::Q6_K, |s, b| {
        // Blocks two apart share bytes for their nibbles.
        let low = fields(&s[b / 4 * 64 + b % 2 * BLOCK..], b % 4 / 2 * 4, 15);
        let codes = joined(low, two_bits(&s[128..], b), 4);
        let scales = [[s[192 + 2 * b], 0], [s[193 + 2 * b], 0]];
        BlockCodes { codes, scales, superscales: [pair(s, 208), [0; 2]] }
    }),
    encode: |x, out| {
        let pairs = put_scales(plain_scales(x, -32.0), out);
        put_codes(&codes(x, pairs, 63.0), out);
    },
};

/// Writes the scales of a superblock, about these, and returns the stored ones, each with the offset of its
/// codes.
pub(crate) fn put_scales(scales: [f32; 16], out: &mut [u8]) -> [(f32, f32); 16] {
    let (scales, d) = signed_scales(scales, 128.0, out, 208);
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale as u8;
    }
    scales.map(|scale| d * f32::from(scale)).map(|scale| (scale, 32.0 * scale))
}

/// Writes the codes of a superblock.
#[inline(always)]
pub(crate) fn put_codes(codes: &[u8; 256], out: &mut [u8]) {
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
