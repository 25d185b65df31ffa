//! BF16: the upper half of an F32.

use crate::formats::{Description, Elements};
use crate::layout::FloatLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(30),
    block_elements: 1,
    block_bytes: 2,
    elements: Elements::Floats(FloatLayout::BF16),
    encode: |x, out| out.copy_from_slice(&half::bf16::from_f32(x[0]).to_le_bytes()),
};
