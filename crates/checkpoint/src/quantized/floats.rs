//! Layers stored as short floats with scales: FP8 (OCP 8-bit Floating Point Specification, E4M3), NVFP4 (E2M1
//! with E4M3 scales for sixteen columns), and MXFP8 and MXFP4 (OCP Microscaling Formats 1.0: E4M3 and E2M1
//! with E8M0 scales for 32 columns). Their numbers are products of floats: held as codes and scales where a
//! format of the engine has those, else as BF16 where that has all numbers exactly, else as F32.

use std::borrow::Cow;

use safetensors::Dtype;
use throng_kernels::quant::{Format, dequantize_row};

use super::coded_rows::CodedRows;
use super::codes::e8m0;
use super::layout::MX_GROUP;
use super::{DecodeError, Layer, RawTensor};
use crate::{mxfp4, nvfp4};

/// The numbers of a tensor of F32, F16, BF16 or E8M0.
pub(super) fn numbers(tensor: &RawTensor<'_>) -> Vec<f32> {
    if tensor.dtype == Dtype::F8_E8M0 {
        return tensor.data.iter().map(|&code| e8m0(code)).collect();
    }
    let format = match tensor.dtype {
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::BF16,
        _ => Format::F32,
    };
    let mut numbers = vec![0.0; tensor.data.len() / format.block_bytes()];
    dequantize_row(format, tensor.data, &mut numbers);
    numbers
}

/// FP8 with a scale for each block of rows and columns; blocks at the edges may be short.
pub(super) fn fp8_blocks(
    layer: &Layer<'_>,
    [high, wide]: [usize; 2],
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let (n_high, per_row) = (rows.div_ceil(high), cols.div_ceil(wide));
    // ModelOpt keeps the dimensions within blocks.
    let n_dims = layer.find(fp8_scale_name(layer)).map_or(0, |scale| scale.shape.len());
    let shape: &[usize] = if n_dims == 4 { &[n_high, 1, per_row, 1] } else { &[n_high, per_row] };
    let scales = fp8_scales(layer, shape)?;
    fp8(layer, wide, |row, col| scales[row / high * per_row + col / wide])
}

/// FP8 with a scale for each row, or one for all, which may have the dimensions of a matrix.
pub(super) fn fp8_rows(layer: &Layer<'_>) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let shape: &[usize] = match layer.find(fp8_scale_name(layer)).map(|scale| scale.shape) {
        Some([]) => &[],
        Some([1]) if rows != 1 => &[1],
        Some([1, 1]) => &[1, 1],
        Some([_]) => &[rows],
        _ => &[rows, 1],
    };
    let scales = fp8_scales(layer, shape)?;
    fp8(layer, cols, |row, _| scales[row % scales.len()])
}

/// The factors of FP8: DeepSeek and transformers call them inverse scales, others scales.
fn fp8_scales(layer: &Layer<'_>, shape: &[usize]) -> Result<Vec<f32>, DecodeError> {
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E8M0];
    layer.numbers(fp8_scale_name(layer), &dtypes, shape)
}

fn fp8_scale_name(layer: &Layer<'_>) -> &'static str {
    if layer.find("weight_scale_inv").is_some() { "weight_scale_inv" } else { "weight_scale" }
}

/// Codes of E4M3 with a scale, by row and column, for each `wide` columns of a row.
fn fp8(
    layer: &Layer<'_>,
    wide: usize,
    scale: impl Fn(usize, usize) -> f32,
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let codes = layer.tensor("weight", &[Dtype::F8_E4M3], &layer.shape)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    Ok(CodedRows { rows: 0..rows, cols, codes: Cow::Borrowed(codes.data), scale }.e4m3(wide))
}

/// FP8 with an exponent for 32 columns of a row.
pub(super) fn mxfp8(layer: &Layer<'_>) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let per_row = cols.div_ceil(MX_GROUP);
    let scales = layer.tensor("weight_scale", &[Dtype::U8, Dtype::F8_E8M0], &[rows, per_row])?;
    fp8(layer, MX_GROUP, |row, col| e8m0(scales.data[row * per_row + col / MX_GROUP]))
}

/// MXFP4: the codes and exponents themselves, in another order.
pub(super) fn mxfp4(layer: &Layer<'_>) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    whole_groups(layer, MX_GROUP)?;
    let codes = layer.tensor("weight_packed", &[Dtype::U8], &[rows, cols / 2])?;
    let scales = layer.tensor("weight_scale", &[Dtype::U8, Dtype::F8_E8M0], &[rows, cols / MX_GROUP])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let blocks = scales.data.iter().zip(codes.data.chunks_exact(mxfp4::CODE_BYTES));
    Ok((Format::MXFP4, blocks.flat_map(|(scale, codes)| mxfp4::block(*scale, codes)).collect()))
}

/// NVFP4: the scales of groups multiply one scale of the tensor, which compressed-tensors stores as its
/// inverse.
pub(super) fn nvfp4(layer: &Layer<'_>, is_modelopt: bool) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    whole_groups(layer, nvfp4::GROUP)?;
    let (codes, global) =
        if is_modelopt { ("weight", "weight_scale_2") } else { ("weight_packed", "weight_global_scale") };
    let codes = layer.tensor(codes, &[Dtype::U8], &[rows, cols / 2])?;
    let per_row = cols / nvfp4::GROUP;
    let scales = layer.tensor("weight_scale", &[Dtype::F8_E4M3], &[rows, per_row])?;
    let global_shape: &[usize] =
        if layer.find(global).is_some_and(|tensor| tensor.shape.is_empty()) { &[] } else { &[1] };
    let global = layer.floats(global, global_shape)?[0];
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let global = if is_modelopt { global } else { 1.0 / global };
    let scale = |row: usize, col: usize| scales.data[row * per_row + col / nvfp4::GROUP];
    Ok(CodedRows { rows: 0..rows, cols, codes: Cow::Borrowed(codes.data), scale }.nvfp4(global))
}

fn whole_groups(layer: &Layer<'_>, group: usize) -> Result<(), DecodeError> {
    let [_, cols] = layer.shape;
    if cols.is_multiple_of(group) {
        return Ok(());
    }
    Err(DecodeError::Tensor {
        name: format!("{}.weight", layer.name),
        expected: format!("a multiple of {group} columns"),
        found: format!("{cols}"),
    })
}
