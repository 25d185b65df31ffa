//! Exact numbers in serialized form, for `#[serde(with = "…")]`: floats as the integers of their bits,
//! since JSON has no NaN and no infinity, and durations in nanoseconds.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that is serialized as integers.
pub trait Exact: Sized {
    /// The value with integers in the place of floats and durations.
    type Integers: Serialize + DeserializeOwned;

    /// Replaces floats and durations by integers.
    fn to_integers(&self) -> Self::Integers;

    /// Restores floats and durations.
    fn from_integers(integers: Self::Integers) -> Self;
}

/// Serializes a value as integers.
///
/// # Errors
/// Errors of the serializer.
pub fn serialize<T: Exact, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_integers().serialize(serializer)
}

/// Deserializes a value from integers.
///
/// # Errors
/// Errors of the deserializer.
pub fn deserialize<'de, T: Exact, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Integers::deserialize(deserializer).map(T::from_integers)
}

impl Exact for f32 {
    type Integers = u32;

    fn to_integers(&self) -> u32 {
        Self::to_bits(*self)
    }

    fn from_integers(bits: u32) -> Self {
        Self::from_bits(bits)
    }
}

impl Exact for f64 {
    type Integers = u64;

    fn to_integers(&self) -> u64 {
        Self::to_bits(*self)
    }

    fn from_integers(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

impl Exact for Duration {
    type Integers = u64;

    fn to_integers(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_integers(nanos: u64) -> Self {
        Self::from_nanos(nanos)
    }
}

impl Exact for (u32, f32) {
    type Integers = (u32, u32);

    fn to_integers(&self) -> Self::Integers {
        (self.0, self.1.to_bits())
    }

    fn from_integers((number, bits): Self::Integers) -> Self {
        (number, f32::from_bits(bits))
    }
}

impl<T: Exact> Exact for Option<T> {
    type Integers = Option<T::Integers>;

    fn to_integers(&self) -> Self::Integers {
        self.as_ref().map(T::to_integers)
    }

    fn from_integers(integers: Self::Integers) -> Self {
        integers.map(T::from_integers)
    }
}

impl<T: Exact> Exact for Vec<T> {
    type Integers = Vec<T::Integers>;

    fn to_integers(&self) -> Self::Integers {
        self.iter().map(T::to_integers).collect()
    }

    fn from_integers(integers: Self::Integers) -> Self {
        integers.into_iter().map(T::from_integers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Floats {
        #[serde(with = "super")]
        single: f32,
        #[serde(with = "super")]
        double: f64,
        #[serde(with = "super")]
        pairs: Option<Vec<(u32, f32)>>,
    }

    #[test]
    fn all_floats_cross_to_the_bit() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let singles = [0.0, -0.0, 1.0, f32::MIN, f32::MAX, f32::MIN_POSITIVE, f32::NAN, -f32::NAN];
        let more = [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(1), f32::from_bits(0x7f80_0001)];
        let random = (0..1000).map(|_| f32::from_bits(fastrand::u32(..)));
        let doubles = [-0.0, f64::MIN, f64::NAN, f64::INFINITY].into_iter();
        let mut doubles = doubles.chain(std::iter::repeat_with(|| f64::from_bits(fastrand::u64(..))));
        for single in singles.into_iter().chain(more).chain(random) {
            let double = doubles.next().expect("endless");
            let text = serde_json::to_string(&Floats { single, double, pairs: Some(vec![(7, single)]) });
            let back: Floats = serde_json::from_str(&text.expect("integers")).expect("integers");
            let pair = back.pairs.expect("a list")[0];
            assert_eq!((back.single.to_bits(), pair.1.to_bits()), (single.to_bits(), single.to_bits()));
            assert_eq!((back.double.to_bits(), pair.0), (double.to_bits(), 7));
        }
    }
}
