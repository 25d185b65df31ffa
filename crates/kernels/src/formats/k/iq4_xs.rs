//! IQ4_XS: `x = d s values[q]` per 32; f16 d, 8 signed 6-bit s, nibbles into the code book.

use super::{plain_scales, signed_scales};
use crate::formats::bits::{nibble, nibbles, pair, u16_at};
use crate::formats::range::{inverse, nearest};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{CodeLayout, Codebook};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(23),
    block_elements: 256,
    block_bytes: 136,
    elements: Elements::Codes(CodeLayout::IQ4_XS, |s, b| {
        let scale = nibble(&s[4..], b) | ((u16_at(s, 2) >> (2 * b) & 3) as u8) << 4;
        let scales = [[scale.wrapping_sub(32), 0], [0; 2]];
        BlockCodes { codes: nibbles(&s[8 + 16 * b..]), scales, superscales: [pair(s, 0), [0; 2]] }
    }),
    encode: |x, out| {
        out.fill(0);
        let values = Codebook::Iq4.values();
        let (scales, d) = signed_scales(plain_scales::<8>(x, f32::from(values[0])), 32.0, out, 0);
        let mut high = 0u16;
        for (j, scale) in scales.into_iter().enumerate() {
            let s = (scale + 32) as u8;
            out[4 + j / 2] |= (s & 15) << (4 * (j % 2));
            high |= u16::from(s >> 4) << (2 * j);
        }
        out[2..4].copy_from_slice(&high.to_le_bytes());
        for i in 0..256 {
            let scale = d * f32::from(scales[i / 32]);
            out[8 + i / 32 * 16 + i % 16] |= nearest(values, x[i] * inverse(scale)) << (4 * (i % 32 / 16));
        }
    },
};
