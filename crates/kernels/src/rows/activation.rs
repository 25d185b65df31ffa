//! The functions of gated linear units. Does not know rows.

use crate::simd::{self, SimdIsa};

/// The function of a gated linear unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x / (1 + e^-x)` (arXiv:1702.03118).
    Silu,
    /// GELU in its tanh approximation (arXiv:1606.08415).
    GeluTanh,
    /// GELU by the error function (arXiv:1606.08415).
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `g / (1 + e^(-alpha g)) (u + 1)` of a gate and an input that are bounded first: `g = min(gate,
    /// limit)`, `u = clamp(up, -limit, limit)` (gpt-oss, arXiv:2508.10925).
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of the inputs.
        limit: f32,
    },
}

impl Activation {
    /// The hidden activations of a gate and an input.
    #[inline(always)]
    pub(crate) unsafe fn glu<S: SimdIsa>(self, gate: S::F, up: S::F) -> S::F {
        // SAFETY: the caller guarantees the features.
        unsafe {
            match self {
                Self::Silu => S::mul(simd::silu::<S>(gate), up),
                Self::GeluTanh => S::mul(simd::gelu_tanh::<S>(gate), up),
                Self::Gelu => S::mul(simd::gelu::<S>(gate), up),
                Self::Relu => S::mul(S::max(gate, S::splat(0.0)), up),
                Self::ClampedSwiglu { alpha, limit } => {
                    let (low, high) = (S::splat(-limit), S::splat(limit));
                    // With the bound first, a NaN passes.
                    let gate = S::min(high, gate);
                    let up = S::max(low, S::min(high, up));
                    let e = simd::exp::<S>(S::mul(S::splat(-alpha), gate));
                    let one = S::splat(1.0);
                    S::mul(S::div(gate, S::add(one, e)), S::add(up, one))
                }
            }
        }
    }
}
