// Functions that drivers approximate differently. Sums of products name each fused operation, so that no
// compiler chooses.

fn exp_(x: f32) -> f32 {
    if (x < -87.3) {
        return 0.0;
    }
    let y = min(x, 88.0);
    let n = floor(fma(y, 1.44269504, 0.5));
    var r = fma(n, -0.693359375, y);
    r = fma(n, 2.12194440e-4, r);
    var s = 1.9875691500e-4;
    s = fma(s, r, 1.3981999507e-3);
    s = fma(s, r, 8.3334519073e-3);
    s = fma(s, r, 4.1665795894e-2);
    s = fma(s, r, 1.6666665459e-1);
    s = fma(s, r, 5.0000001201e-1);
    s = fma(s, r * r, r) + 1.0;
    return s * bitcast<f32>(u32(i32(n) + 127) << 23u);
}

fn sigmoid_(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_(-x));
}

fn silu_(x: f32) -> f32 {
    return x / (1.0 + exp_(-x));
}

fn tanh_(x: f32) -> f32 {
    let a = abs(x);
    if (a < 0.25) {
        let y = x * x;
        var s = 0.021869488;
        s = fma(s, y, -0.053968254);
        s = fma(s, y, 0.133333333);
        s = fma(s, y, -0.333333333);
        return fma(x * y, s, x);
    }
    let t = 1.0 - 2.0 / (exp_(2.0 * min(a, 20.0)) + 1.0);
    return select(t, -t, x < 0.0);
}

// Abramowitz and Stegun 7.1.26.
fn erf_(x: f32) -> f32 {
    let a = abs(x);
    let t = 1.0 / fma(0.3275911, a, 1.0);
    var s = 1.061405429;
    s = fma(s, t, -1.453152027);
    s = fma(s, t, 1.421413741);
    s = fma(s, t, -0.284496736);
    s = fma(s, t, 0.254829592);
    let e = fma(-s * t, exp_(-a * a), 1.0);
    return select(e, -e, x < 0.0);
}

// ln(1 + e^x).
fn softplus_(x: f32) -> f32 {
    let y = exp_(-abs(x));
    let s = y / (2.0 + y);
    let q = s * s;
    var t = 1.0 / 13.0;
    t = fma(t, q, 1.0 / 11.0);
    t = fma(t, q, 1.0 / 9.0);
    t = fma(t, q, 1.0 / 7.0);
    t = fma(t, q, 1.0 / 5.0);
    t = fma(t, q, 1.0 / 3.0);
    t = fma(t, q, 1.0);
    return fma(2.0 * s, t, max(x, 0.0));
}

fn dot4(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
