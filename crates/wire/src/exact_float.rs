//! Floats that cross exactly: as the integers of their bits, since JSON has no NaN and no infinity. Does not know what they
//! measure.

use serde::{Deserialize, Serialize};

/// An `f32` as its bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct F32(u32);

/// An `f64` as its bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct F64(u64);

impl From<f32> for F32 {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

impl From<F32> for f32 {
    fn from(value: F32) -> Self {
        Self::from_bits(value.0)
    }
}

impl From<f64> for F64 {
    fn from(value: f64) -> Self {
        Self(value.to_bits())
    }
}

impl From<F64> for f64 {
    fn from(value: F64) -> Self {
        Self::from_bits(value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_floats_cross_to_the_bit() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let extremes =
            [0.0, -0.0, 1.0, f32::MIN, f32::MAX, f32::MIN_POSITIVE, f32::EPSILON, f32::NAN, -f32::NAN];
        let more = [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(1), f32::from_bits(0x7f80_0001)];
        let random = (0..1000).map(|_| f32::from_bits(fastrand::u32(..)));
        for value in extremes.into_iter().chain(more).chain(random) {
            let text = serde_json::to_string(&F32::from(value)).expect("an integer");
            let back: F32 = serde_json::from_str(&text).expect("an integer");
            assert_eq!(f32::from(back).to_bits(), value.to_bits());
        }
        let extremes = [0.0, -0.0, f64::MIN, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let random = (0..1000).map(|_| f64::from_bits(fastrand::u64(..)));
        for value in extremes.into_iter().chain(random) {
            let text = serde_json::to_string(&F64::from(value)).expect("an integer");
            let back: F64 = serde_json::from_str(&text).expect("an integer");
            assert_eq!(f64::from(back).to_bits(), value.to_bits());
        }
    }
}
