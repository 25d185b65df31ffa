//! MXFP4 (OCP Microscaling Formats 1.0) as compressed-tensors names its tensors: the same codes and exponents
//! as here, in another order.

use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::super::codes::MX_GROUP;
use super::{Decoded, Description, Layer, Layout, LayoutKind};
use crate::mxfp4;

pub(super) const FORMAT: Description =
    Description { bits: 4, usual_format: |_, _, _| Format::MXFP4, decode, decode_experts: None };

impl Layout {
    /// MXFP4 as compressed-tensors names its tensors.
    pub const MXFP4: Self = Self::new(LayoutKind::Mxfp4);
}

fn decode(layer: &Layer<'_>, _: Layout) -> Decoded {
    let [rows, cols] = layer.shape;
    layer.check_whole_groups(MX_GROUP)?;
    let codes = layer.tensor("weight_packed", &[Dtype::U8], &[rows, cols / 2])?;
    let scales = layer.tensor("weight_scale", &[Dtype::U8, Dtype::F8_E8M0], &[rows, cols / MX_GROUP])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let blocks = scales.data.iter().zip(codes.data.chunks_exact(mxfp4::CODE_BYTES));
    Ok((Format::MXFP4, blocks.flat_map(|(scale, codes)| mxfp4::block(*scale, codes)).collect()))
}
