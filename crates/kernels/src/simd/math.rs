//! Elementary functions generic over the ISA, built from additions, multiplications and divisions only: the
//! same bits everywhere.

use super::SimdIsa;

/// `e^x` to about 2 units in the last place: `2^n · p(r)` with `n = round(x / ln 2)`, the Cephes polynomial
/// (Moshier, expf). 0 below -87.7, infinite above 88.4; NaN gives NaN.
#[inline(always)]
pub(crate) unsafe fn exp<S: SimdIsa>(x: S::F) -> S::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const COEFFICIENTS: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: no memory is touched; the ISA's features are the caller's word.
    unsafe {
        // With the constant first, a NaN passes both bounds.
        let clamped = S::max(S::splat(-104.0), S::min(S::splat(89.0), x));
        let shifted = S::fma(clamped, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::sub(shifted, S::splat(ROUND));
        let r = S::fma(n, S::splat(-LN2_HIGH), clamped);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in COEFFICIENTS {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        // Exponents of 2^n are 1 to 254: below that the result is zero, above infinity.
        let exponent = S::isub(S::bits(shifted), S::isplat(ROUND.to_bits() as i32 - 127));
        S::mul(p, S::from_bits(S::ishl::<23>(S::imax(exponent, S::isplat(0)))))
    }
}

/// Hyperbolic tangent as `1 - 2 / (e^{2x} + 1)`, its absolute error below 2e-7.
#[inline(always)]
pub(crate) unsafe fn tanh<S: SimdIsa>(x: S::F) -> S::F {
    // SAFETY: as for `exp`.
    unsafe {
        let one = S::splat(1.0);
        let e = exp::<S>(S::add(x, x));
        S::sub(one, S::div(S::splat(2.0), S::add(e, one)))
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) unsafe fn silu<S: SimdIsa>(x: S::F) -> S::F {
    // SAFETY: as for `exp`.
    unsafe { S::div(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), x)))) }
}

/// `x/2 (1 + tanh(u))` with `u = sqrt(2/π)(x + 0.044715 x³)`, written as `x / (1 + e^{-2u})`, which is the
/// same and does not cancel for negative x.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: SimdIsa>(x: S::F) -> S::F {
    // SAFETY: as for `exp`.
    unsafe {
        let cube = S::mul(S::mul(x, x), x);
        let u = S::add(x, S::mul(S::splat(0.044715), cube));
        let e = exp::<S>(S::mul(S::splat(-1.595_769), u));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// `x/2 (1 + erf(x / √2))`, the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
pub(crate) unsafe fn gelu<S: SimdIsa>(x: S::F) -> S::F {
    const COEFFICIENTS: [f32; 4] = [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];
    // SAFETY: as for `exp`.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let z = S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let z = S::max(z, S::sub(zero, z));
        let t = S::div(one, S::fma(z, S::splat(0.327_591_1), one));
        let mut p = S::splat(1.061_405_4);
        for c in COEFFICIENTS {
            p = S::fma(p, t, S::splat(c));
        }
        // 1 - erf(|z|); for a negative x it is half of what x is multiplied with.
        let rest = S::mul(S::mul(p, t), exp::<S>(S::sub(zero, S::mul(z, z))));
        // |x| (1 - rest) is |x| erf(|z|), and x + |x| erf(|z|) is x (1 + erf(z)) for either sign; x + |x| is exact.
        let size = S::max(x, S::sub(zero, x));
        S::mul(S::splat(0.5), S::sub(S::add(x, size), S::mul(size, rest)))
    }
}

/// The sum of the sixteen elements, pairwise from the two halves down.
#[inline(always)]
pub(crate) unsafe fn sum<S: SimdIsa>(x: S::F) -> f32 {
    let mut v = [0.0f32; 16];
    // SAFETY: `v` has room for a vector.
    unsafe { S::store(v.as_mut_ptr(), x) };
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            v[i] += v[i + width];
        }
    }
    v[0]
}
