//! Row-wise operations in plain loops.

/// Root mean square norm, `out = x / sqrt(mean(x²) + eps) * weight` (Zhang & Sennrich 2019,
/// arXiv:1910.07467).
///
/// `x` and `out` are [n, d] with `d = weight.len()`. For Gemma pass `1 + weight`.
///
/// # Panics
/// When the lengths differ or are not whole rows.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let d = weight.len();
    assert!(
        x.len() == out.len() && x.len().is_multiple_of(d),
        "rows of {d} in {} and {}",
        x.len(),
        out.len()
    );
    for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        let mean_square = x.iter().fold(0.0, |sum, v| sum + v * v) / d as f32;
        let inverse = 1.0 / (mean_square + eps).sqrt();
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * inverse * w;
        }
    }
}

/// Layer norm, `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` (Ba et al. 2016,
/// arXiv:1607.06450), in f64.
///
/// # Panics
/// When the lengths differ or are not whole rows.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let d = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(d) && bias.len() == d, "rows of {d}");
    for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / d as f64;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / d as f64;
        let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
        for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
            *out = ((f64::from(x) - mean) * inverse * f64::from(weight[i]) + f64::from(bias[i])) as f32;
        }
    }
}

/// `x Φ(x)` with the distribution function `Φ` of a normal variable (Hendrycks & Gimpel 2016,
/// arXiv:1606.08415), in f64.
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))) as f32
}

/// The error function by its series of positive terms, `2/√π e^{-x²} Σ 2^n x^{2n+1} / (2n+1)!!` (DLMF 7.6.2).
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 || x.is_nan() {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

/// `gate = gelu(gate) * up` (GeGLU; Shazeer 2020, arXiv:2002.05202).
///
/// # Panics
/// When the lengths differ.
pub fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = gelu(*g) * u;
    }
}

/// `x / (1 + exp(-x))` (Elfwing et al. 2017, arXiv:1702.03118).
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))` (Hendrycks & Gimpel 2016, arXiv:1606.08415).
pub fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())
}

/// `gate = silu(gate) * up` (SwiGLU; Shazeer 2020, arXiv:2002.05202).
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = silu(*g) * u;
    }
}

/// `gate = gelu_tanh(gate) * up` (GeGLU; Shazeer 2020, arXiv:2002.05202).
///
/// # Panics
/// When the lengths differ.
pub fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = gelu_tanh(*g) * u;
    }
}

/// `gate = max(gate, 0) * up` (ReGLU; Shazeer 2020, arXiv:2002.05202).
///
/// # Panics
/// When the lengths differ.
pub fn relu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = g.max(0.0) * u;
    }
}

/// `gate = g sigmoid(alpha g) (u + 1)` with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`
/// (gpt-oss, arXiv:2508.10925).
///
/// # Panics
/// When the lengths differ.
pub fn clamped_swiglu(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    assert_eq!(gate.len(), up.len());
    for (gate, up) in gate.iter_mut().zip(up) {
        let (g, u) = (gate.min(limit), up.clamp(-limit, limit));
        *gate = g / (1.0 + (-alpha * g).exp()) * (u + 1.0);
    }
}

/// `x += y`.
///
/// # Panics
/// When the lengths differ.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// `x = cap tanh(x / cap)` (Gemma 2, arXiv:2408.00118).
pub fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * (*x / cap).tanh();
    }
}

/// `max + ln Σ exp(x - max)` of one row; `-inf` when every element is `-inf` or there is none.
pub fn logsumexp(x: &[f32]) -> f32 {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    if max == f32::NEG_INFINITY {
        return max;
    }
    let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
    max + sum.ln() as f32
}

/// `x = exp(x - max) / Σ exp(x - max)` of one row; a row of only `-inf` becomes zeros.
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    if max == f32::NEG_INFINITY {
        return x.fill(0.0);
    }
    let mut sum = 0.0;
    for v in x.iter_mut() {
        *v = (*v - max).exp();
        sum += *v;
    }
    for v in x {
        *v /= sum;
    }
}

/// `x = x - logsumexp(x)` of one row.
pub fn log_softmax(x: &mut [f32]) {
    let lse = logsumexp(x);
    for v in x {
        *v -= lse;
    }
}

/// The index of the greatest element, the first of equals; NaN never wins. 0 for an empty row.
pub fn argmax(x: &[f32]) -> usize {
    x.iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, &v)| if v > best.1 { (i, v) } else { best })
        .0
}

/// The indices of the `k` greatest elements, greatest first, smaller index first among equals; NaN sorts
/// last.
pub fn top_k(x: &[f32], k: usize) -> Vec<u32> {
    let mut indices: Vec<u32> = (0..x.len() as u32).collect();
    let key = |i: u32| if x[i as usize].is_nan() { f32::NEG_INFINITY } else { x[i as usize] };
    indices.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    indices.truncate(k);
    indices
}
