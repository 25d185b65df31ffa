//! MXFP8 (OCP Microscaling Formats 1.0): FP8 with an exponent for 32 columns of a row.

use safetensors::Dtype;

use super::super::codes::{MX_GROUP, e8m0};
use super::{Decoded, Description, Layer, Layout, LayoutKind, e4m3};

pub(super) const FORMAT: Description = Description {
    bits: 8,
    usual_format: |_, cols, _| e4m3::usual_format(cols, MX_GROUP, true),
    decode,
    decode_experts: None,
};

impl Layout {
    /// MXFP8: FP8 with exponents for 32 columns of a row.
    pub const MXFP8: Self = Self::new(LayoutKind::Mxfp8);
}

fn decode(layer: &Layer<'_>, _: Layout) -> Decoded {
    let [rows, cols] = layer.shape;
    let per_row = cols.div_ceil(MX_GROUP);
    let scales = layer.tensor("weight_scale", &[Dtype::U8, Dtype::F8_E8M0], &[rows, per_row])?;
    e4m3::decode(layer, MX_GROUP, |row, col| e8m0(scales.data[row * per_row + col / MX_GROUP]))
}
