//! Layers stored as short floats with scales: FP8 (OCP 8-bit Floating Point Specification, E4M3), NVFP4 (E2M1 with E4M3 scales for
//! sixteen columns), and MXFP8 and MXFP4 (OCP Microscaling Formats 1.0: E4M3 and E2M1 with E8M0 scales for 32 columns). Their numbers are
//! products of floats: held as codes and scales where a format of the engine has those, else as BF16 where that has all numbers exactly,
//! else as F32.

use safetensors::Dtype;
use throng_kernels::quant::{Format, dequantize_row};

use super::layout::{MX_GROUP, has_whole_blocks};
use super::{DecodeError, Layer, RawTensor};
use crate::weights::mxfp4;

/// Columns of NVFP4 that share a scale.
pub(super) const NVFP4_GROUP: usize = 16;
/// Bits of a code of E2M1.
pub(super) const E2M1_BITS: usize = 4;

/// E2M1 by the lowest bits of a byte: a sign, two bits of exponent, one of mantissa.
pub(super) fn e2m1(code: u8) -> f32 {
    const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let size = SIZES[(code & 7) as usize];
    if code & 8 == 0 { size } else { -size }
}

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

/// E4M3 without infinities: four bits of exponent, three of mantissa.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// E8M0: a power of two.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => 2.0_f32.powi(-127),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
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
    Ok(numbers(&layer.tensor(fp8_scale_name(layer), &dtypes, shape)?))
}

fn fp8_scale_name(layer: &Layer<'_>) -> &'static str {
    if layer.find("weight_scale_inv").is_some() { "weight_scale_inv" } else { "weight_scale" }
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
    let blocks = scales.data.iter().zip(codes.data.chunks_exact(mxfp4::CODE_BYTES));
    Ok((Format::MXFP4, blocks.flat_map(|(scale, codes)| mxfp4::block(*scale, codes)).collect()))
}

/// E4M3 with a scale, by row and column, for each `wide` columns of a row.
fn fp8(
    layer: &Layer<'_>,
    wide: usize,
    scale: impl Fn(usize, usize) -> f32,
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [_, cols] = layer.shape;
    let codes = layer.tensor("weight", &[Dtype::F8_E4M3], &layer.shape)?;
    if let Some(format) = e4m3_format(codes.data, layer.shape, wide, &scale) {
        return Ok((format, e4m3_blocks(format, codes.data, cols, scale)));
    }
    let table: [f32; 256] = std::array::from_fn(|code| e4m3(code as u8));
    let number = |(i, &code): (usize, &u8)| table[code as usize] * scale(i / cols, i % cols);
    Ok(shortest(codes.data.iter().enumerate().map(number)))
}

/// The format that holds such codes and scales as they are; `None` where its numbers would not be exactly these.
fn e4m3_format(
    codes: &[u8],
    [rows, cols]: [usize; 2],
    wide: usize,
    scale: &impl Fn(usize, usize) -> f32,
) -> Option<Format> {
    let all =
        |is: fn(f32) -> bool| (0..rows).all(|row| (0..cols).step_by(wide).all(|col| is(scale(row, col))));
    // The formats have no NaN.
    if codes.iter().any(|code| code & 0x7f == 0x7f) {
        return None;
    }
    match () {
        () if has_whole_blocks(Format::MXFP8, cols, wide) && all(is_exponent) => Some(Format::MXFP8),
        () if has_whole_blocks(Format::FP8, cols, wide) && all(is_ordinary) => Some(Format::FP8),
        () => None,
    }
}

/// Whether a scale is a power of two with which MXFP8 has the product of every code.
fn is_exponent(scale: f32) -> bool {
    // The smallest one is not a normal number.
    let is_power = scale.to_bits() & 0x807f_ffff == 0 && scale > 0.0 || scale == e8m0(0);
    is_power && scale < 2.0_f32.powi(120)
}

/// Whether the product of a scale and any code is a normal number or zero, so that it is rounded once.
fn is_ordinary(scale: f32) -> bool {
    scale == 0.0 || (2.0_f32.powi(-110)..=2.0_f32.powi(110)).contains(&scale.abs())
}

/// Rows as blocks of FP8 or MXFP8.
fn e4m3_blocks(format: Format, codes: &[u8], cols: usize, scale: impl Fn(usize, usize) -> f32) -> Vec<u8> {
    let n = format.block_elements();
    let mut blocks = Vec::with_capacity(codes.len() / n * format.block_bytes());
    for (row, codes) in codes.chunks_exact(cols).enumerate() {
        for (i, codes) in codes.chunks_exact(n).enumerate() {
            let scale = scale(row, i * n);
            match format {
                Format::MXFP8 => blocks.push((scale.to_bits() >> 23) as u8),
                _ => blocks.extend(scale.to_le_bytes()),
            }
            blocks.extend(codes);
        }
    }
    blocks
}

/// NVFP4: the scales of groups multiply one scale of the tensor, which compressed-tensors stores as its inverse.
pub(super) fn nvfp4(layer: &Layer<'_>, is_modelopt: bool) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    whole_groups(layer, NVFP4_GROUP)?;
    let (codes, global) =
        if is_modelopt { ("weight", "weight_scale_2") } else { ("weight_packed", "weight_global_scale") };
    let codes = layer.tensor(codes, &[Dtype::U8], &[rows, cols / 2])?;
    let per_row = cols / NVFP4_GROUP;
    let scales = layer.tensor("weight_scale", &[Dtype::F8_E4M3], &[rows, per_row])?;
    let global_shape: &[usize] =
        if layer.find(global).is_some_and(|tensor| tensor.shape.is_empty()) { &[] } else { &[1] };
    let global = layer.floats(global, global_shape)?[0];
    let global = if is_modelopt { global } else { 1.0 / global };
    let number = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        let code = codes.data[i / 2] >> (E2M1_BITS * (i % 2));
        e2m1(code) * (e4m3(scales.data[row * per_row + col / NVFP4_GROUP]) * global)
    };
    Ok(shortest((0..rows * cols).map(number)))
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

/// The numbers as BF16 if that has all of them, else as F32.
pub(super) fn shortest(numbers: impl Iterator<Item = f32>) -> (Format, Vec<u8>) {
    let numbers: Vec<f32> = numbers.collect();
    if numbers.iter().all(|x| x.to_bits() & 0xffff == 0) {
        let bytes = numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes());
        return (Format::BF16, bytes.collect());
    }
    (Format::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_has_the_numbers_of_its_specification() {
        let known =
            [(0x00, 0.0), (0x01, 2.0_f32.powi(-9)), (0x08, 2.0_f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0)];
        for (code, number) in known {
            assert_eq!((e4m3(code), e4m3(code | 0x80)), (number, -number));
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
