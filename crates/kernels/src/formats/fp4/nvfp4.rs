//! NVFP4: half blocks of eight bytes after their scales, which are E4M3 without a sign. Each byte holds two
//! elements at a distance of eight.

use crate::formats::range::{extreme, inverse, nearest};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{CodeLayout, Codebook, unsigned_e4m3};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(40),
    block_elements: 64,
    block_bytes: 36,
    elements: Elements::Codes(CodeLayout::NVFP4, |s, b| split(s, b, 1.0)),
    encode: |x, out| encode(x, 1.0, out),
};

/// Block `b` (of 32 columns) of a stored block whose scales are multiplied with `factor`.
pub(super) fn split(s: &[u8], b: usize, factor: f32) -> BlockCodes {
    let code = |i: usize| {
        let byte = s[4 + 16 * b + i / 16 * 8 + i % 8];
        if i % 16 < 8 { byte & 15 } else { byte >> 4 }
    };
    // NaN is 0, and a sign is ignored, as in ggml.
    let scale = |half: usize| match s[2 * b + half] {
        0x7F => [0; 2],
        code => [code & 0x7F, 0],
    };
    // The code book has doubled numbers, and scales are read as a 256th.
    let [low, second, third, high] = (128.0 * factor).to_le_bytes();
    let superscales = [[low, second], [third, high]];
    BlockCodes { codes: std::array::from_fn(code), scales: [scale(0), scale(1)], superscales }
}

/// Writes the stored block of `x`, whose scales are multiplied with `factor`.
pub(super) fn encode(x: &[f32], factor: f32, out: &mut [u8]) {
    let scale_of = |code: u8| unsigned_e4m3(code) * 256.0 * factor;
    for (half, x) in x.chunks_exact(16).enumerate() {
        // The largest number is 6; the next scale that is not smaller.
        let wanted = extreme(x).abs() / 6.0;
        let scale = (0..0x7F).find(|&scale| scale_of(scale) >= wanted).unwrap_or(0x7E);
        out[half] = scale;
        let code = |i: usize| nearest(Codebook::E2m1.values(), x[i] * inverse(scale_of(scale) * 0.5));
        for (j, out) in out[4 + 8 * half..][..8].iter_mut().enumerate() {
            *out = code(j) | code(j + 8) << 4;
        }
    }
}
