//! Low-rank products in plain loops.

/// `out[o] += scale Σ_r b[o, r] Σ_c a[r, c] x[c]` (LoRA, arXiv:2106.09685): `a` is [rank, k], `b` is [n,
/// rank], row-major as PEFT stores them.
///
/// # Panics
/// When the lengths do not fit.
pub fn add_low_rank(x: &[f32], a: &[f32], b: &[f32], scale: f32, out: &mut [f32]) {
    let rank = a.len() / x.len();
    assert!(a.len() == rank * x.len() && b.len() == out.len() * rank, "rank {rank}");
    let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).fold(0.0, |sum, (w, x)| sum + w * x);
    let shrunk: Vec<f32> = a.chunks_exact(x.len()).map(|row| dot(row, x) * scale).collect();
    for (out, row) in out.iter_mut().zip(b.chunks_exact(rank)) {
        *out += dot(row, &shrunk);
    }
}
