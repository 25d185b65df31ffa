//! FP8 with a scale for each block of rows and columns; blocks at the edges may be short.

use super::{Decoded, Description, Layer, Layout, LayoutKind, e4m3};

pub(super) const FORMAT: Description = Description {
    bits: 8,
    usual_format: |layout, cols, has_exponents| e4m3::usual_format(cols, layout.block[1], has_exponents),
    decode,
    decode_experts: Some(|stack, layout| stack.fp8(Some(layout.block))),
};

impl Layout {
    /// FP8 with scales for blocks of rows and columns.
    pub const fn fp8_blocks(block: [usize; 2]) -> Self {
        Self { block, ..Self::new(LayoutKind::Fp8Blocks) }
    }
}

fn decode(layer: &Layer<'_>, layout: Layout) -> Decoded {
    let ([rows, cols], [high, wide]) = (layer.shape, layout.block);
    let (n_high, per_row) = (rows.div_ceil(high), cols.div_ceil(wide));
    // ModelOpt keeps the dimensions within blocks.
    let n_dims = layer.find(e4m3::scale_name(layer)).map_or(0, |scale| scale.shape.len());
    let shape: &[usize] = if n_dims == 4 { &[n_high, 1, per_row, 1] } else { &[n_high, per_row] };
    let scales = e4m3::scales(layer, shape)?;
    e4m3::decode(layer, wide, |row, col| scales[row / high * per_row + col / wide])
}
