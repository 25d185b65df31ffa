//! IQ4_NL: `x = d values[q]`; f16 d, 16 bytes of nibbles into the code book.

use crate::formats::bits::{nibbles, pair, put_f16, put_nibbles};
use crate::formats::range::{extreme, inverse, nearest};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{CodeLayout, Codebook};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(20),
    block_elements: 32,
    block_bytes: 18,
    elements: Elements::Codes(CodeLayout::IQ4_NL, |s, _| {
        BlockCodes::simple(nibbles(&s[2..]), [pair(s, 0), [0; 2]])
    }),
    encode: |x, out| {
        let values = Codebook::Iq4.values();
        let d = extreme(x) / f32::from(values[0]);
        put_f16(out, 0, d);
        put_nibbles(&mut out[2..], |j| nearest(values, x[j] * inverse(d)));
    },
};
