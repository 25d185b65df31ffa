//! NVFP4 (E2M1 with E4M3 scales for sixteen columns) as compressed-tensors names its tensors: the scales of
//! groups multiply one scale of the tensor, which is stored as its inverse.

use std::borrow::Cow;

use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::super::coded_rows::{CodedRows, has_whole_blocks};
use super::{Decoded, Description, Layer, Layout, LayoutKind};
use crate::nvfp4;

pub(super) const FORMAT: Description = Description {
    bits: 4,
    usual_format: |_, cols, _| {
        if has_whole_blocks(Format::NVFP4_SCALED, cols, cols) { Format::NVFP4_SCALED } else { Format::F32 }
    },
    decode: |layer, _| {
        let ends = Ends { codes: "weight_packed", scale: "weight_global_scale" };
        decode(layer, ends, |scale| 1.0 / scale)
    },
    decode_experts: None,
};

impl Layout {
    /// NVFP4 as compressed-tensors names its tensors.
    pub const NVFP4: Self = Self::new(LayoutKind::Nvfp4);
}

/// Endings of a layer's tensors: its codes, and the scale of all.
pub(super) struct Ends {
    pub(super) codes: &'static str,
    pub(super) scale: &'static str,
}

/// Reads codes and the scale of the tensor with these endings of names; `factor` converts the stored scale
/// into a factor of the codes.
pub(super) fn decode(layer: &Layer<'_>, ends: Ends, factor: fn(f32) -> f32) -> Decoded {
    let [rows, cols] = layer.shape;
    layer.check_whole_groups(nvfp4::GROUP)?;
    let codes = layer.tensor(ends.codes, &[Dtype::U8], &[rows, cols / 2])?;
    let per_row = cols / nvfp4::GROUP;
    let scales = layer.tensor("weight_scale", &[Dtype::F8_E4M3], &[rows, per_row])?;
    let shape: &[usize] =
        if layer.find(ends.scale).is_some_and(|tensor| tensor.shape.is_empty()) { &[] } else { &[1] };
    let global = layer.floats(ends.scale, shape)?[0];
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let scale = |row: usize, col: usize| scales.data[row * per_row + col / nvfp4::GROUP];
    Ok(CodedRows { rows: 0..rows, cols, codes: Cow::Borrowed(codes.data), scale }.nvfp4(factor(global)))
}
