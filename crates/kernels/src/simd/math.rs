//! Elementary functions over any lane, from additions, multiplications and divisions only: the same bits everywhere.

use super::Lane;

/// `e^x` to about 2 units in the last place: `2^n · p(r)` with `n = round(x / ln 2)`, the Cephes polynomial
/// (Moshier, expf). 0 below -87.7, infinite above 88.4; NaN gives NaN.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lane>(x: L::F) -> L::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const COEFFICIENTS: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: no memory is touched; the lane's features are the caller's word.
    unsafe {
        // With the constant first, a NaN passes both bounds.
        let clamped = L::max(L::splat(-104.0), L::min(L::splat(89.0), x));
        let shifted = L::fma(clamped, L::splat(std::f32::consts::LOG2_E), L::splat(ROUND));
        let n = L::sub(shifted, L::splat(ROUND));
        let r = L::fma(n, L::splat(-LN2_HIGH), clamped);
        let r = L::fma(n, L::splat(-LN2_LOW), r);
        let mut p = L::splat(1.987_569_1e-4);
        for c in COEFFICIENTS {
            p = L::fma(p, r, L::splat(c));
        }
        let p = L::add(L::fma(p, L::mul(r, r), r), L::splat(1.0));
        // The exponents of 2^n are 1 to 254: below stands zero, above infinity.
        let exponent = L::isub(L::bits(shifted), L::isplat(ROUND.to_bits() as i32 - 127));
        L::mul(p, L::from_bits(L::ishl::<23>(L::imax(exponent, L::isplat(0)))))
    }
}

/// Hyperbolic tangent as `1 - 2 / (e^{2x} + 1)`, its absolute error below 2e-7.
#[inline(always)]
pub(crate) unsafe fn tanh<L: Lane>(x: L::F) -> L::F {
    // SAFETY: as for `exp`.
    unsafe {
        let one = L::splat(1.0);
        let e = exp::<L>(L::add(x, x));
        L::sub(one, L::div(L::splat(2.0), L::add(e, one)))
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) unsafe fn silu<L: Lane>(x: L::F) -> L::F {
    // SAFETY: as for `exp`.
    unsafe { L::div(x, L::add(L::splat(1.0), exp::<L>(L::sub(L::splat(0.0), x)))) }
}

/// `x/2 (1 + tanh(u))` with `u = sqrt(2/π)(x + 0.044715 x³)`, written as `x / (1 + e^{-2u})`, which is the same and
/// does not cancel for negative x.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<L: Lane>(x: L::F) -> L::F {
    // SAFETY: as for `exp`.
    unsafe {
        let cube = L::mul(L::mul(x, x), x);
        let u = L::add(x, L::mul(L::splat(0.044715), cube));
        let e = exp::<L>(L::mul(L::splat(-1.595_769), u));
        L::div(x, L::add(L::splat(1.0), e))
    }
}

/// The sum of the sixteen elements, pairwise from the two halves down.
#[inline(always)]
pub(crate) unsafe fn sum<L: Lane>(x: L::F) -> f32 {
    let mut v = [0.0f32; 16];
    // SAFETY: `v` has room for a vector.
    unsafe { L::store(v.as_mut_ptr(), x) };
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            v[i] += v[i + width];
        }
    }
    v[0]
}
