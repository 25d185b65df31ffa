//! NVFP4 as ModelOpt names its tensors, with the scale of the tensor itself rather than its inverse.

use super::nvfp4::Ends;
use super::{Description, Layout, LayoutKind, nvfp4};

pub(super) const FORMAT: Description = Description {
    decode: |layer, _| nvfp4::decode(layer, Ends { codes: "weight", scale: "weight_scale_2" }, |scale| scale),
    decode_experts: Some(|stack, _| stack.nvfp4()),
    ..nvfp4::FORMAT
};

impl Layout {
    /// NVFP4 as ModelOpt names its tensors.
    pub const NVFP4_MODELOPT: Self = Self::new(LayoutKind::Nvfp4Modelopt);
}
