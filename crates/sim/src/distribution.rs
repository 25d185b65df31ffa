//! Random lengths and times. Samples depend on the generator alone, so that a seed repeats a run.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::{SimError, check_not_negative, check_positive};

/// A distribution of numbers that are not negative.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Always the same number.
    Constant(f64),
    /// Equally likely numbers between two bounds.
    Uniform {
        /// Smallest value.
        low: f64,
        /// Largest value.
        high: f64,
    },
    /// An exponential distribution.
    Exponential {
        /// Mean of the distribution.
        mean: f64,
    },
    /// Gamma, by mean and coefficient of variation; 1 is exponential, more is burstier.
    Gamma {
        /// Mean of the distribution.
        mean: f64,
        /// Standard deviation in parts of the mean.
        cv: f64,
    },
    /// Log-normal, by its median and the standard deviation of the logarithm.
    LogNormal {
        /// Median of the distribution.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

impl Distribution {
    /// Checks its numbers.
    ///
    /// # Errors
    /// Names the field that uses it.
    pub fn check(&self, field: &'static str) -> Result<(), SimError> {
        match self {
            Self::Constant(value) => check_not_negative(field, *value).map(|_| ()),
            Self::Uniform { low, high } => {
                check_not_negative(field, *low)?;
                check_not_negative(field, *high)?;
                if low > high {
                    return Err(SimError::setting(field, format!("low {low} is above high {high}")));
                }
                Ok(())
            }
            Self::Exponential { mean } => check_positive(field, *mean).map(|_| ()),
            Self::Gamma { mean, cv } => {
                check_positive(field, *mean)?;
                check_positive(field, *cv).map(|_| ())
            }
            Self::LogNormal { median, sigma } => {
                check_positive(field, *median)?;
                check_not_negative(field, *sigma).map(|_| ())
            }
        }
    }

    /// A random number of the distribution.
    pub fn sample(&self, rng: &mut Rng) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Uniform { low, high } => low + (high - low) * rng.f64(),
            Self::Exponential { mean } => mean * exponential(rng),
            Self::Gamma { mean, cv } => {
                let shape = 1.0 / (cv * cv);
                gamma(rng, shape) * mean / shape
            }
            Self::LogNormal { median, sigma } => median * (sigma * normal(rng)).exp(),
        }
    }

    /// A random number of tokens, at least `least`.
    pub fn sample_tokens(&self, rng: &mut Rng, least: u32) -> u32 {
        // A cast saturates.
        (self.sample(rng).round() as u32).max(least)
    }
}

/// An exponential random number of mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.f64()).ln()
}

/// A normal random number of mean 0 and variance 1 (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (2.0 * exponential(rng)).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

/// A gamma number of scale 1 (Marsaglia and Tsang).
fn gamma(rng: &mut Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        let power = (1.0 - rng.f64()).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * power;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - rng.f64()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_mean_and_the_spread_that_were_asked_for() {
        let mut rng = Rng::with_seed(1);
        for (distribution, expected, cv) in [
            (Distribution::Constant(3.0), 3.0, 0.0),
            (Distribution::Exponential { mean: 5.0 }, 5.0, 1.0),
            (Distribution::Gamma { mean: 2.0, cv: 0.5 }, 2.0, 0.5),
            (Distribution::Gamma { mean: 2.0, cv: 3.0 }, 2.0, 3.0),
            (Distribution::LogNormal { median: 10.0, sigma: 0.5 }, 10.0 * 0.125_f64.exp(), 0.533),
            (Distribution::Uniform { low: 0.0, high: 2.0 }, 1.0, 0.577),
        ] {
            let n = 200_000;
            let samples: Vec<f64> = (0..n).map(|_| distribution.sample(&mut rng)).collect();
            let mean = samples.iter().sum::<f64>() / f64::from(n);
            let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
            assert!((mean / expected - 1.0).abs() < 0.03, "{distribution:?} has mean {mean}");
            let measured = variance.sqrt() / mean;
            assert!((measured - cv).abs() < 0.05 * cv.max(0.1), "{distribution:?} has a cv of {measured}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_named() {
        for wrong in [
            Distribution::Constant(f64::NAN),
            Distribution::Exponential { mean: 0.0 },
            Distribution::Gamma { mean: 1.0, cv: -1.0 },
            Distribution::Uniform { low: 2.0, high: 1.0 },
            Distribution::LogNormal { median: f64::INFINITY, sigma: 1.0 },
        ] {
            let error = wrong.check("think_time").expect_err("it is wrong").to_string();
            assert!(error.starts_with("think_time: "), "{error}");
        }
    }
}
