//! Matrix products in plain loops.

/// `out[i, o] = Σ_c x[i, c] w[o, c]`: `x` is [n, k], `w` is [m, k] row-major (as checkpoints store it), `out`
/// is [n, m].
///
/// Each element is summed along `k` from left to right, so a row's bits do not depend on `n`.
///
/// # Panics
/// When the lengths do not fit the shape.
pub fn matmul(x: &[f32], w: &[f32], out: &mut [f32], n: usize, k: usize, m: usize) {
    assert!(x.len() == n * k && w.len() == m * k && out.len() == n * m, "matmul [{n},{k}] x [{m},{k}]");
    for i in 0..n {
        for o in 0..m {
            let (x, w) = (&x[i * k..][..k], &w[o * k..][..k]);
            out[i * m + o] = x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
        }
    }
}

/// `x[i, :] += bias` for every row.
///
/// # Panics
/// When `x` is not whole rows of `bias.len()`.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()), "rows of {} in {}", bias.len(), x.len());
    for row in x.chunks_exact_mut(bias.len()) {
        for (x, b) in row.iter_mut().zip(bias) {
            *x += b;
        }
    }
}

/// Grouped product of a mixture of experts: row `i` of `x` [n, k] times expert `experts[i]` of `w`
/// [n_experts, m, k].
///
/// # Panics
/// When the lengths do not fit the shape or an expert does not exist.
pub fn matmul_experts(x: &[f32], w: &[f32], experts: &[u32], out: &mut [f32], k: usize, m: usize) {
    let n = experts.len();
    assert!(x.len() == n * k && out.len() == n * m && w.len().is_multiple_of(m * k));
    for (i, &expert) in experts.iter().enumerate() {
        let w = &w[expert as usize * m * k..][..m * k];
        matmul(&x[i * k..][..k], w, &mut out[i * m..][..m], 1, k, m);
    }
}
