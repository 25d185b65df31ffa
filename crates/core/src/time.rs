//! Points in time and durations, as numbers that are passed in. Does not know a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time in nanoseconds since an origin its giver chose (engine start, simulation start).
///
/// Timestamps of different clocks cannot be compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Timestamp {
    /// The point `ns` nanoseconds after the origin.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Nanos {
    /// Creates a duration of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// The duration in milliseconds.
    pub fn as_ms_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The duration in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Nanos {
    /// Converts a duration; saturates after 584 years.
    fn from(length: Duration) -> Self {
        Self(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Nanos> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Nanos) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl Sub<Nanos> for Timestamp {
    type Output = Self;

    fn sub(self, rhs: Nanos) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }
}
