//! MXFP8: 32 elements of E4M3 after the exponent `e` of their scale `2^(e - 127)`, a byte.

use super::e4m3::put_codes;
use crate::formats::range::extreme;
use crate::formats::{Description, Elements};
use crate::layout::FloatLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: None,
    block_elements: 32,
    block_bytes: 33,
    elements: Elements::Floats(FloatLayout::Mxfp8),
    // The scale is 2^(e - 8) where the largest magnitude has the exponent `e`, as 448, the largest number, has 8.
    encode: |x, out| {
        let largest = extreme(x).abs();
        out[0] = ((largest.to_bits() >> 23) as i32 - 8).clamp(1, 246) as u8;
        put_codes(x, f32::from_bits(u32::from(out[0]) << 23), &mut out[1..]);
    },
};
