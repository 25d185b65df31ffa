//! A byte for each integer, whatever its bits, with a scale for each group, for each row, or one for all.

use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::integers::{Integers, groups_of};
use super::{Decoded, Description, Layer, Layout, LayoutKind};

pub(super) const FORMAT: Description =
    Description { bits: 8, usual_format: |_, _, _| Format::Q8_0, decode, decode_experts: None };

impl Layout {
    /// A byte for each integer.
    pub const fn int8(group: Option<usize>, is_symmetric: bool) -> Self {
        Self { group, is_symmetric, ..Self::new(LayoutKind::Int8) }
    }
}

fn decode(layer: &Layer<'_>, layout: Layout) -> Decoded {
    let ([rows, cols], Layout { group, is_symmetric, .. }) = (layer.shape, layout);
    let codes = layer.tensor("weight", &[Dtype::I8], &layer.shape)?;
    let width = layout.group_columns(cols);
    let n_groups = cols.div_ceil(width);
    let shape: &[usize] = match layer.find("weight_scale").map(|scale| scale.shape) {
        _ if group.is_some() => &[rows, n_groups],
        Some([]) => &[],
        Some([1]) if rows != 1 => &[1],
        Some([_]) => &[rows],
        _ => &[rows, 1],
    };
    let scales = layer.floats("weight_scale", shape)?;
    let zeros = match is_symmetric {
        true => None,
        false => Some(layer.tensor("weight_zero_point", &[Dtype::I8], shape)?.data),
    };
    let groups = groups_of(layer, "weight_g_idx", width, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let zero = |i: usize| zeros.map_or(0, |zeros| i16::from(zeros[i % zeros.len()] as i8));
    let difference = |row: usize, col: usize| {
        i16::from(codes.data[row * cols + col] as i8) - zero(row * n_groups + groups[col])
    };
    let by_group = (0..rows * n_groups).map(|i| scales[i % scales.len()]).collect();
    Ok(Integers::new(layer.shape, difference, by_group, groups.clone(), n_groups).encode())
}
