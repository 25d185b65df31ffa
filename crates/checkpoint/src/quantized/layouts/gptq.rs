//! GPTQ (arXiv:2210.17323): the codes of a row one after the other in words, `[in * bits / 32, out]`; with
//! act-order, each column has its own choice of group. A code of three bits may span two words. The first
//! version stores zero points minus one.

use super::super::DecodeError;
use super::integers::{Integers, by_row, code_at, groups_of, n_words, usual_format};
use super::{Decoded, Description, Layer, Layout, LayoutKind};

pub(super) const FORMAT: Description = Description {
    bits: 4,
    usual_format: |layout, _, _| usual_format(layout.bits),
    decode: |layer, layout| decode(layer, layout, 1),
    decode_experts: None,
};

impl Layout {
    /// GPTQ in its first version.
    pub const fn gptq(bits: usize, group: Option<usize>) -> Self {
        Self { bits, group, ..Self::new(LayoutKind::Gptq) }
    }
}

/// Reads zero points that are stored less `zero_offset`.
pub(super) fn decode(layer: &Layer<'_>, layout: Layout, zero_offset: u32) -> Decoded {
    let ([rows, cols], bits) = (layer.shape, layout.bits);
    // Other widths leave it open how many columns there are.
    if bits == 3 && !cols.is_multiple_of(32) {
        return Err(DecodeError::Tensor {
            name: format!("{}.qweight", layer.name),
            expected: "a multiple of 32 columns".to_owned(),
            found: format!("{cols}"),
        });
    }
    let group = layout.group_columns(cols);
    let n_groups = cols.div_ceil(group);
    let words = layer.integers("qweight", &[n_words(cols, bits), rows])?;
    let n_zero_words = n_words(rows, bits);
    let zeros = layer.integers("qzeros", &[n_groups, n_zero_words])?;
    let scales = layer.floats("scales", &[n_groups, rows])?;
    let groups = groups_of(layer, "g_idx", group, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let code = |row: usize, col: usize| code_at(|word| words[word * rows + row], bits, col);
    let zero = |row: usize, group: usize| {
        let stored = code_at(|word| zeros[group * n_zero_words + word], bits, row);
        // A zero point of 2^bits is stored as the largest code.
        stored + zero_offset
    };
    let difference = |row: usize, col: usize| code(row, col) as i16 - zero(row, groups[col]) as i16;
    let scales = by_row(&scales, n_groups, rows);
    Ok(Integers::new(layer.shape, difference, scales, groups.clone(), n_groups).encode())
}
