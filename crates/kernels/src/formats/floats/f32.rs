//! F32: IEEE single precision.

use crate::formats::{Description, Elements};
use crate::layout::FloatLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(0),
    block_elements: 1,
    block_bytes: 4,
    elements: Elements::Floats(FloatLayout::F32),
    encode: |x, out| out.copy_from_slice(&x[0].to_le_bytes()),
};
