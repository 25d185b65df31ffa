//! The range of weights unpacked to bf16 for AMX tiles: which power of two they are multiplied by. Does not
//! unpack.

use crate::simd::TILE_DOTS_BY;

/// The power of two that brings a matrix's weights into the range of f16, and the factor that undoes it in
/// the products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PairScale {
    /// Scales and mins are multiplied by 2^power.
    pub(super) power: i8,
    /// Factor of products: a power of two, or NaN if a scale is not finite.
    pub(crate) back: f32,
}

impl PairScale {
    /// Scale for weights that are floats already.
    pub(crate) const NONE: Self = Self { power: 0, back: 1.0 };

    /// Chooses the scale for weights of at most this magnitude.
    pub(crate) fn of(largest: f32) -> Self {
        if !largest.is_finite() {
            return Self { power: 0, back: f32::NAN };
        }
        // Keeps weights below 2^15; a matrix of zeros may have any exponent.
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        let power = 14 - exponent.clamp(-60, 60);
        Self { power: power as i8, back: TILE_DOTS_BY * f32::from_bits(((127 - power) as u32) << 23) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fill_the_range_of_f16_and_products_are_scaled_back() {
        for largest in [1.0, 0.999, 1e-7, 3.0e4, 65_504.0 * 128.0 * 63.0, f32::from_bits(1), 0.0] {
            let PairScale { power, back } = PairScale::of(largest);
            let by = 2.0_f32.powi(power.into());
            assert!(largest * by < 32_768.0 && (largest < 1e-10 || largest * by >= 16_384.0), "{largest}");
            assert!(back.is_normal() && by * back == TILE_DOTS_BY, "{largest}");
        }
        assert!(PairScale::of(f32::INFINITY).back.is_nan() && PairScale::of(f32::NAN).back.is_nan());
    }
}
