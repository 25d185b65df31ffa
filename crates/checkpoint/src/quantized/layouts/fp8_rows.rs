//! FP8 with a scale for each row, or one for all, which may have the dimensions of a matrix.

use super::{Decoded, Description, Layer, Layout, LayoutKind, e4m3};

pub(super) const FORMAT: Description = Description {
    bits: 8,
    usual_format: |_, cols, has_exponents| e4m3::usual_format(cols, cols, has_exponents),
    decode,
    decode_experts: Some(|stack, _| stack.fp8(None)),
};

impl Layout {
    /// FP8 with a scale for each row, or one.
    pub const FP8_ROWS: Self = Self::new(LayoutKind::Fp8Rows);
}

fn decode(layer: &Layer<'_>, _: Layout) -> Decoded {
    let [rows, cols] = layer.shape;
    let shape: &[usize] = match layer.find(e4m3::scale_name(layer)).map(|scale| scale.shape) {
        Some([]) => &[],
        Some([1]) if rows != 1 => &[1],
        Some([1, 1]) => &[1, 1],
        Some([_]) => &[rows],
        _ => &[rows, 1],
    };
    let scales = e4m3::scales(layer, shape)?;
    e4m3::decode(layer, cols, |row, _| scales[row % scales.len()])
}
