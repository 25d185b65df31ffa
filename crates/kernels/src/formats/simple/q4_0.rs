//! Q4_0: `x = d (q - 8)`; f16 d, 16 bytes of nibbles.

use crate::formats::bits::{nibbles, pair, put_f16, put_nibbles};
use crate::formats::range::{extreme, inverse};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(2),
    block_elements: 32,
    block_bytes: 18,
    elements: Elements::Codes(CodeLayout::Q4_0, |s, _| {
        BlockCodes::simple(nibbles(&s[2..]), [pair(s, 0), [0; 2]])
    }),
    encode: |x, out| {
        let d = extreme(x) / -8.0;
        put_f16(out, 0, d);
        put_nibbles(&mut out[2..], |j| (x[j] * inverse(d) + 8.5).clamp(0.0, 15.0) as u8);
    },
};
