//! NVFP4_SCALED: a factor, an f32, before a block of NVFP4.

use super::nvfp4::{encode, split};
use crate::formats::bits::f32_at;
use crate::formats::range::extreme;
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: None,
    block_elements: 64,
    block_bytes: 40,
    elements: Elements::Codes(CodeLayout::NVFP4, |s, b| split(&s[4..], b, f32_at(s, 0))),
    // The factor makes the largest scale that of the largest magnitude.
    encode: |x, out| {
        let factor = extreme(x).abs() / (6.0 * 448.0);
        out[..4].copy_from_slice(&factor.to_le_bytes());
        encode(x, factor, &mut out[4..]);
    },
};
