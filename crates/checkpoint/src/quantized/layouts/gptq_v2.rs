//! GPTQ in its second version, which stores zero points as they are.

use super::{Description, Layout, LayoutKind, gptq};

pub(super) const FORMAT: Description =
    Description { decode: |layer, layout| gptq::decode(layer, layout, 0), ..gptq::FORMAT };

impl Layout {
    /// GPTQ in its second version.
    pub const fn gptq_v2(bits: usize, group: Option<usize>) -> Self {
        Self { bits, group, ..Self::new(LayoutKind::GptqV2) }
    }
}
