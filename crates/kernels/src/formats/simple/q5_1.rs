//! Q5_1: `x = d q + m`; f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles.

use crate::formats::bits::{five_bits, pair, put_f16, put_fifth_bits, put_nibbles};
use crate::formats::range::{inverse, min_max};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(7),
    block_elements: 32,
    block_bytes: 24,
    elements: Elements::Codes(CodeLayout::Q5_1, |s, _| {
        BlockCodes::simple(five_bits(&s[4..]), [pair(s, 0), pair(s, 2)])
    }),
    encode: |x, out| {
        let (min, max) = min_max(x);
        let d = (max - min) / 31.0;
        put_f16(out, 0, d);
        put_f16(out, 2, min);
        let code = |j: usize| ((x[j] - min) * inverse(d) + 0.5).min(31.0) as u8;
        put_fifth_bits(&mut out[4..8], code);
        put_nibbles(&mut out[8..], code);
    },
};
