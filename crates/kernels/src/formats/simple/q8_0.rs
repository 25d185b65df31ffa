//! Q8_0: `x = d q`; f16 d, 32 × i8 q.

use crate::formats::bits::{pair, put_f16};
use crate::formats::range::{extreme, inverse};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{BLOCK, CodeLayout};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(8),
    block_elements: 32,
    block_bytes: 34,
    elements: Elements::Codes(CodeLayout::Q8_0, |s, _| {
        let codes: &[u8; BLOCK] = s[2..].first_chunk().expect("a whole block");
        BlockCodes::simple(codes.map(|q| q ^ 0x80), [pair(s, 0), [0; 2]])
    }),
    encode: |x, out| {
        let d = extreme(x).abs() / 127.0;
        put_f16(out, 0, d);
        for (out, v) in out[2..].iter_mut().zip(x) {
            *out = (v * inverse(d)).round() as i8 as u8;
        }
    },
};
