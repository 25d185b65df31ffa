//! Packed integers of compressed-tensors: a row's codes one after the other in words of 32 bits, `[out, in *
//! bits / 32]`, with an offset of half their range. A code may span two words.

use safetensors::Dtype;

use super::super::DecodeError;
use super::integers::{Integers, code_at, groups_of, n_words, usual_format};
use super::{Decoded, Description, Layer, Layout, LayoutKind};

pub(super) const FORMAT: Description = Description {
    bits: 4,
    // The difference of a code and its zero point has a bit more than either.
    usual_format: |layout, _, _| usual_format(layout.bits + usize::from(!layout.is_symmetric)),
    decode,
    decode_experts: None,
};

impl Layout {
    /// Packed integers of compressed-tensors.
    pub const fn packed(bits: usize, group: Option<usize>, is_symmetric: bool) -> Self {
        Self { bits, group, is_symmetric, ..Self::new(LayoutKind::Packed) }
    }
}

fn decode(layer: &Layer<'_>, layout: Layout) -> Decoded {
    let ([rows, cols], Layout { bits, is_symmetric, .. }) = (layer.shape, layout);
    let group = layout.group_columns(cols);
    let (n_groups, n_words) = (cols.div_ceil(group), n_words(cols, bits));
    let words = layer.integers("weight_packed", &[rows, n_words])?;
    check_shape(layer)?;
    let scale = layer.find("weight_scale").map(|scale| scale.shape);
    // One scale for all rows.
    let is_one = scale == Some(&[1][..]) && n_groups == 1 && is_symmetric;
    let scales = match is_one {
        true => vec![layer.floats("weight_scale", &[1])?[0]; rows],
        false => layer.floats("weight_scale", &[rows, n_groups])?,
    };
    let zeros = match is_symmetric {
        true => None,
        false => Some(layer.integers("weight_zero_point", &[self::n_words(rows, bits), n_groups])?),
    };
    let groups = groups_of(layer, "weight_g_idx", group, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let code = |row: usize, col: usize| code_at(|word| words[row * n_words + word], bits, col);
    let zero = |row: usize, group: usize| match &zeros {
        None => 1 << (bits - 1),
        Some(zeros) => code_at(|word| zeros[word * n_groups + group], bits, row),
    };
    let difference = |row: usize, col: usize| code(row, col) as i16 - zero(row, groups[col]) as i16;
    Ok(Integers::new(layer.shape, difference, scales, groups.clone(), n_groups).encode())
}

/// Checks the stored shape of packed codes, whose last word need not be full.
fn check_shape(layer: &Layer<'_>) -> Result<(), DecodeError> {
    let Some(stored) = layer.find("weight_shape") else { return Ok(()) };
    let dims: Vec<u64> = match stored.dtype {
        Dtype::I64 => stored.data.as_chunks().0.iter().map(|n| u64::from_le_bytes(*n)).collect(),
        Dtype::I32 => stored.data.as_chunks().0.iter().map(|n| u64::from(u32::from_le_bytes(*n))).collect(),
        _ => Vec::new(),
    };
    if dims == layer.shape.map(|n| n as u64) {
        return Ok(());
    }
    Err(DecodeError::Tensor {
        name: format!("{}.weight_shape", layer.name),
        expected: format!("{:?}", layer.shape),
        found: format!("{} {dims:?}", stored.dtype),
    })
}
