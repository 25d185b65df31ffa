//! AWQ (arXiv:2306.00978) with four bits, in the order of AutoAWQ's GEMM kernel: words of eight rows at a
//! column, `[in, out / 8]`.

use super::integers::{Integers, by_row, in_order, usual_format};
use super::{Decoded, Description, Layer, Layout, LayoutKind};

pub(super) const FORMAT: Description = Description {
    bits: 4,
    usual_format: |_, _, _| usual_format(WITH_ZERO_POINT),
    decode,
    decode_experts: None,
};

/// Number of bits of the difference of a code and its zero point: one more than either.
pub(super) const WITH_ZERO_POINT: usize = 5;
/// Row, of eight neighbouring ones, at each place of a word.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Layout {
    /// AWQ in the order of AutoAWQ's GEMM kernel.
    pub const fn awq(group: Option<usize>) -> Self {
        Self { group, ..Self::new(LayoutKind::Awq) }
    }
}

fn decode(layer: &Layer<'_>, layout: Layout) -> Decoded {
    let [rows, cols] = layer.shape;
    let group = layout.group_columns(cols);
    let (n_groups, n_words) = (cols.div_ceil(group), rows.div_ceil(8));
    let words = layer.integers("qweight", &[cols, n_words])?;
    let zeros = layer.integers("qzeros", &[n_groups, n_words])?;
    let scales = layer.floats("scales", &[n_groups, rows])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let place: [usize; 8] = std::array::from_fn(|row| AWQ_ORDER.iter().position(|&r| r == row).unwrap_or(0));
    let at = |words: &[u32], i: usize, row: usize| words[i * n_words + row / 8] >> (4 * place[row % 8]) & 15;
    let difference = |row, col: usize| at(&words, col, row) as i16 - at(&zeros, col / group, row) as i16;
    let scales = by_row(&scales, n_groups, rows);
    Ok(Integers::new(layer.shape, difference, scales, in_order(cols, group), n_groups).encode())
}
