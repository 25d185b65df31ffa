//! F16: IEEE half precision.

use crate::formats::bits::put_f16;
use crate::formats::{Description, Elements};
use crate::layout::FloatLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(1),
    block_elements: 1,
    block_bytes: 2,
    elements: Elements::Floats(FloatLayout::F16),
    encode: |x, out| put_f16(out, 0, x[0]),
};
