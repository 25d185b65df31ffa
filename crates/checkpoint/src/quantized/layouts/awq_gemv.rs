//! AWQ in the order of AutoAWQ's GEMV kernel: words of eight neighbouring columns of a row, `[out, in / 8]`;
//! zero points and scales of a row's groups are padded to whole loads of its kernel.

use super::awq::WITH_ZERO_POINT;
use super::integers::{Integers, in_order, usual_format};
use super::{Decoded, Description, Layer, Layout, LayoutKind};

pub(super) const FORMAT: Description = Description {
    bits: 4,
    usual_format: |_, _, _| usual_format(WITH_ZERO_POINT),
    decode,
    decode_experts: None,
};

impl Layout {
    /// AWQ in the order of AutoAWQ's GEMV kernel.
    pub const fn awq_gemv(group: Option<usize>) -> Self {
        Self { group, ..Self::new(LayoutKind::AwqGemv) }
    }
}

fn decode(layer: &Layer<'_>, layout: Layout) -> Decoded {
    let [rows, cols] = layer.shape;
    let group = layout.group_columns(cols);
    let (n_groups, n_words) = (cols.div_ceil(group), cols.div_ceil(8));
    let zero_words = n_groups.div_ceil(8).next_multiple_of((128 / group).clamp(1, 4));
    let words = layer.integers("qweight", &[rows, n_words])?;
    let zeros = layer.integers("qzeros", &[rows, zero_words])?;
    let padded = layer.floats("scales", &[rows, 8 * zero_words])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let at = |words: &[u32], n: usize, row: usize, i: usize| words[row * n + i / 8] >> (4 * (i % 8)) & 15;
    let difference = |row: usize, col: usize| {
        at(&words, n_words, row, col) as i16 - at(&zeros, zero_words, row, col / group) as i16
    };
    let scales = padded.chunks(8 * zero_words).flat_map(|row| &row[..n_groups]).copied().collect();
    Ok(Integers::new(layer.shape, difference, scales, in_order(cols, group), n_groups).encode())
}
