//! Low-rank matrices on the example device. Does not know the rows that they change.

use throng_model::backend::LowRankPart;

/// A pair of matrices.
#[derive(Debug)]
pub struct LowRank {
    first_col: usize,
    /// `[rank, cols]`.
    a: Vec<f32>,
    /// `[n, rank]`.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

impl LowRank {
    pub(super) fn new(part: &LowRankPart<'_>) -> Self {
        let &LowRankPart { first_col, a, b, rank, scale } = part;
        Self { first_col, a: a.to_vec(), b: b.to_vec(), rank, scale }
    }

    /// Adds the product to one row.
    pub(super) fn add(&self, x: &[f32], out: &mut [f32]) {
        let dot = |w: &[f32], x: &[f32]| -> f32 { w.iter().zip(x).map(|(w, x)| w * x).sum() };
        let shrunk: Vec<f32> = self.a.chunks_exact(x.len()).map(|a| dot(a, x) * self.scale).collect();
        for (out, b) in out[self.first_col..].iter_mut().zip(self.b.chunks_exact(self.rank)) {
            *out += dot(b, &shrunk);
        }
    }
}
