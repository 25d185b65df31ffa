//! Layers of FP8 (OCP 8-bit Floating Point Specification, E4M3) with scales. Does not know the elements that
//! a scale applies to.

use std::borrow::Cow;

use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::super::DecodeError;
use super::super::coded_rows::{CodedRows, has_whole_blocks};
use super::{Decoded, Layer};

/// The factors of FP8: DeepSeek and transformers call them inverse scales, others scales.
pub(super) fn scales(layer: &Layer<'_>, shape: &[usize]) -> Result<Vec<f32>, DecodeError> {
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E8M0];
    layer.numbers(scale_name(layer), &dtypes, shape)
}

pub(super) fn scale_name(layer: &Layer<'_>) -> &'static str {
    if layer.find("weight_scale_inv").is_some() { "weight_scale_inv" } else { "weight_scale" }
}

/// Codes of E4M3 with a scale, by row and column, for each `wide` columns of a row.
pub(super) fn decode(layer: &Layer<'_>, wide: usize, scale: impl Fn(usize, usize) -> f32) -> Decoded {
    let [rows, cols] = layer.shape;
    let codes = layer.tensor("weight", &[Dtype::F8_E4M3], &layer.shape)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    Ok(CodedRows { rows: 0..rows, cols, codes: Cow::Borrowed(codes.data), scale }.e4m3(wide))
}

/// The format of E4M3 with a scale for each `wide` columns of a row.
pub(super) fn usual_format(cols: usize, wide: usize, has_exponents: bool) -> Format {
    match has_exponents {
        true if has_whole_blocks(Format::MXFP8, cols, wide) => Format::MXFP8,
        true => Format::BF16,
        false if has_whole_blocks(Format::FP8, cols, wide) => Format::FP8,
        false => Format::F32,
    }
}
