//! Q3_K: `x = d s (q - 4)` per 16; third bits, 2-bit layers, 16 signed 6-bit s in 12 bytes, f16 d.

use super::{codes, fields, joined, plain_scales, put_high_bits, put_two_bits, signed_scales, two_bits};
use crate::formats::bits::pair;
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(11),
    block_elements: 256,
    block_bytes: 110,
    elements: Elements::Codes(CodeLayout::Q3_K, |s, b| BlockCodes {
        codes: joined(two_bits(&s[32..], b), fields(s, b, 1), 2),
        scales: [2 * b, 2 * b + 1].map(|j| [scale(&s[96..108], j), 0]),
        superscales: [pair(s, 108), [0; 2]],
    }),
    encode: |x, out| {
        out.fill(0);
        let (scales, d) = signed_scales(plain_scales::<16>(x, -4.0), 32.0, out, 108);
        for (j, scale) in scales.into_iter().enumerate() {
            let s = (scale + 32) as u8;
            out[96 + j % 8] |= (s & 15) << (4 * (j / 8));
            out[104 + j % 4] |= (s >> 4) << (2 * (j / 4));
        }
        let pairs = scales.map(|scale| d * f32::from(scale)).map(|scale| (scale, 4.0 * scale));
        let codes = codes(x, pairs, 7.0);
        put_high_bits(out, &codes, 2);
        put_two_bits(&mut out[32..96], &codes);
    },
};

/// The signed 6-bit scale of sub-block `j` (of sixteen) of the 12 scale bytes, in -32..32.
fn scale(s: &[u8], j: usize) -> u8 {
    let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
    let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
    (low | high << 4).wrapping_sub(32)
}
