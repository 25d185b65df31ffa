//! FP8: 128 elements of E4M3 after their scale, an f32.

use super::e4m3::put_codes;
use crate::formats::range::extreme;
use crate::formats::{Description, Elements};
use crate::layout::FloatLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: None,
    block_elements: 128,
    block_bytes: 132,
    elements: Elements::Floats(FloatLayout::Fp8),
    // The scale makes the largest magnitude the largest number, 448.
    encode: |x, out| {
        let scale = extreme(x).abs() / 448.0;
        out[..4].copy_from_slice(&scale.to_le_bytes());
        put_codes(x, scale, &mut out[4..]);
    },
};
