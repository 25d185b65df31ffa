//! Q4_1: `x = d q + m`; f16 d, f16 m, 16 bytes of nibbles.

use crate::formats::bits::{nibbles, pair, put_f16, put_nibbles};
use crate::formats::range::{inverse, min_max};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(3),
    block_elements: 32,
    block_bytes: 20,
    elements: Elements::Codes(CodeLayout::Q4_1, |s, _| {
        BlockCodes::simple(nibbles(&s[4..]), [pair(s, 0), pair(s, 2)])
    }),
    encode: |x, out| {
        let (min, max) = min_max(x);
        let d = (max - min) / 15.0;
        put_f16(out, 0, d);
        put_f16(out, 2, min);
        put_nibbles(&mut out[4..], |j| ((x[j] - min) * inverse(d) + 0.5).min(15.0) as u8);
    },
};
