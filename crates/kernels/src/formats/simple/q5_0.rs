//! Q5_0: `x = d (q - 16)`; f16 d, 32 fifth bits, 16 bytes of nibbles.

use crate::formats::bits::{five_bits, pair, put_f16, put_fifth_bits, put_nibbles};
use crate::formats::range::{extreme, inverse};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(6),
    block_elements: 32,
    block_bytes: 22,
    elements: Elements::Codes(CodeLayout::Q5_0, |s, _| {
        BlockCodes::simple(five_bits(&s[2..]), [pair(s, 0), [0; 2]])
    }),
    encode: |x, out| {
        let d = extreme(x) / -16.0;
        put_f16(out, 0, d);
        let code = |j: usize| (x[j] * inverse(d) + 16.5).clamp(0.0, 31.0) as u8;
        put_fifth_bits(&mut out[2..6], code);
        put_nibbles(&mut out[6..], code);
    },
};
