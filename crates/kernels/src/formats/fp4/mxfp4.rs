//! MXFP4: `x = 2^(e - 128) values[q]`; u8 e, 16 bytes of nibbles into the code book of doubled E2M1 numbers.

use crate::formats::bits::{nibbles, put_nibbles};
use crate::formats::range::{extreme, inverse, nearest};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::{CodeLayout, Codebook, power_of_two};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(39),
    block_elements: 32,
    block_bytes: 17,
    elements: Elements::Codes(CodeLayout::MXFP4, |s, _| {
        BlockCodes::simple(nibbles(&s[1..]), [[s[0], 0], [0; 2]])
    }),
    // The scale is the power of two with which the largest magnitude has the largest exponent of the code book.
    encode: |x, out| {
        let largest = extreme(x).abs();
        // Twice the numbers of the code book end with 8 and 12: exponent 3.
        let exponent = ((largest.to_bits() >> 23) as i32 - 127 - 3 + 128).clamp(0, 254);
        out[0] = exponent as u8;
        let d = power_of_two(out[0]);
        put_nibbles(&mut out[1..], |j| nearest(Codebook::E2m1.values(), x[j] * inverse(d)));
    },
};
