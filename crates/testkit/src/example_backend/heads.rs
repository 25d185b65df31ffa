//! Columns of heads on the example device. Does not know layers.

use throng_model::backend::HeadColumns;

use super::{Matrix, Rows};

/// Copies `width` columns of each of `n` heads.
pub(super) fn copy(x: &Rows, from: HeadColumns, out: &mut Rows, to: HeadColumns, n: usize, width: usize) {
    for (x, out) in x.iter().zip(out.iter_mut()) {
        for head in 0..n {
            let to = to.first + head * to.stride;
            out[to..to + width].copy_from_slice(&x[from.first + head * from.stride..][..width]);
        }
    }
}

/// Multiplies each head with a matrix of its own.
pub(super) fn multiply(x: &Rows, from: HeadColumns, w: &[Matrix], out: &mut Rows, to: HeadColumns) {
    for (x, out) in x.iter().zip(out.iter_mut()) {
        for (head, w) in w.iter().enumerate() {
            let product = w.multiply(&x[from.first + head * from.stride..][..w.cols]);
            out[to.first + head * to.stride..][..product.len()].copy_from_slice(&product);
        }
    }
}
