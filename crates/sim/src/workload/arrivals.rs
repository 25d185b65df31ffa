//! Times of arrivals that do not depend on answers (an open loop).

use std::f64::consts::TAU;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use throng_core::time::Timestamp;

use crate::distribution::Distribution;
use crate::error::{SimError, check_positive};

/// A process of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalProcess {
    /// Arrivals at equal intervals.
    Regular {
        /// Mean arrivals per second.
        rate: f64,
    },
    /// Arrivals at random, independent times.
    Poisson {
        /// Mean arrivals per second.
        rate: f64,
    },
    /// Gaps from a gamma distribution: with a coefficient of variation above 1, bursts.
    Gamma {
        /// Mean arrivals per second.
        rate: f64,
        /// Standard deviation of the gaps, relative to their mean.
        cv: f64,
    },
    /// Independent arrivals whose rate follows a day, with its peak in the middle.
    Daily {
        /// Mean arrivals per second.
        mean_rate: f64,
        /// Rate of the peak divided by the mean rate, from 1 to 1000.
        peak_factor: f64,
        /// Length of a day in seconds.
        day_s: f64,
    },
}

impl ArrivalProcess {
    fn check(self) -> Result<(), SimError> {
        match self {
            Self::Regular { rate } | Self::Poisson { rate } => check_positive("rate", rate).map(|_| ()),
            Self::Gamma { rate, cv } => {
                check_positive("rate", rate)?;
                check_positive("cv", cv).map(|_| ())
            }
            Self::Daily { mean_rate, peak_factor, day_s } => {
                check_positive("mean_rate", mean_rate)?;
                check_positive("day_s", day_s)?;
                match (1.0..=1000.0).contains(&peak_factor) {
                    true => Ok(()),
                    false => Err(SimError::setting(
                        "peak_factor",
                        format!("{peak_factor} is not a number from 1 to 1000"),
                    )),
                }
            }
        }
    }
}

/// The times of a process, one after the other.
#[derive(Debug)]
pub struct Arrivals {
    process: ArrivalProcess,
    /// Concentration of a day around its peak.
    concentration: f64,
    rng: Rng,
    now_s: f64,
}

impl Arrivals {
    /// The arrivals of a process.
    ///
    /// # Errors
    /// When a number of it is none that a process can have.
    pub fn new(process: ArrivalProcess, rng: Rng) -> Result<Self, SimError> {
        process.check()?;
        let concentration = match process {
            ArrivalProcess::Daily { peak_factor, .. } => concentration_of(peak_factor),
            _ => 0.0,
        };
        Ok(Self { process, concentration, rng, now_s: 0.0 })
    }

    /// Time of the next arrival.
    pub fn next_at(&mut self) -> Timestamp {
        match self.process {
            ArrivalProcess::Regular { rate } => self.now_s += 1.0 / rate,
            ArrivalProcess::Poisson { rate } => {
                self.now_s += Distribution::Exponential { mean: 1.0 / rate }.sample(&mut self.rng);
            }
            ArrivalProcess::Gamma { rate, cv } => {
                self.now_s += Distribution::Gamma { mean: 1.0 / rate, cv }.sample(&mut self.rng);
            }
            ArrivalProcess::Daily { mean_rate, peak_factor, day_s } => loop {
                // Thinning: arrivals at the rate of the peak, of which as many are kept as the time asks for.
                let mean = 1.0 / (mean_rate * peak_factor);
                self.now_s += Distribution::Exponential { mean }.sample(&mut self.rng);
                let phase = TAU * (self.now_s / day_s - 0.5);
                let share_of_peak = (self.concentration * (phase.cos() - 1.0)).exp();
                if self.rng.f64() < share_of_peak {
                    break;
                }
            },
        }
        Timestamp::from_ns((self.now_s * 1e9) as u64)
    }
}

/// The concentration of a von Mises curve whose peak is this multiple of its mean.
fn concentration_of(peak_factor: f64) -> f64 {
    let factor = |concentration: f64| {
        const N: u32 = 4096;
        let share = |i: u32| (concentration * ((TAU * f64::from(i) / f64::from(N)).cos() - 1.0)).exp();
        f64::from(N) / (0..N).map(share).sum::<f64>()
    };
    let (mut low, mut high) = (0.0, 1e7);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if factor(middle) < peak_factor { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(process: ArrivalProcess, until_s: f64) -> Vec<f64> {
        let mut arrivals = Arrivals::new(process, Rng::with_seed(5)).expect("a process");
        let seconds = std::iter::repeat_with(|| arrivals.next_at().as_ns() as f64 / 1e9);
        seconds.take_while(|at| *at < until_s).collect()
    }

    #[test]
    fn rates_are_kept_and_bursts_are_burstier() {
        for process in [
            ArrivalProcess::Regular { rate: 20.0 },
            ArrivalProcess::Poisson { rate: 20.0 },
            ArrivalProcess::Gamma { rate: 20.0, cv: 2.0 },
        ] {
            let n = times(process, 2_000.0).len() as f64;
            assert!((n / 40_000.0 - 1.0).abs() < 0.03, "{process:?}: {n}");
        }
        let most_in_a_second = |process| {
            let mut counts = vec![0; 2_000];
            times(process, 2_000.0).iter().for_each(|at| counts[*at as usize] += 1);
            counts.into_iter().max().expect("some")
        };
        let poisson = most_in_a_second(ArrivalProcess::Poisson { rate: 20.0 });
        let bursty = most_in_a_second(ArrivalProcess::Gamma { rate: 20.0, cv: 3.0 });
        assert!(bursty > 2 * poisson, "{bursty} after {poisson}");
    }

    #[test]
    fn a_day_has_its_mean_and_its_peak() {
        let (mean_rate, peak_factor, day_s) = (50.0, 3.0, 2_400.0);
        let times = times(ArrivalProcess::Daily { mean_rate, peak_factor, day_s }, day_s);
        let mean = times.len() as f64 / day_s;
        assert!((mean / mean_rate - 1.0).abs() < 0.03, "{mean}");
        let around_noon = times.iter().filter(|at| (1_170.0..1_230.0).contains(*at)).count() as f64 / 60.0;
        assert!((around_noon / mean_rate - peak_factor).abs() < 0.2, "{around_noon}");
    }

    #[test]
    fn rates_that_are_none_are_named() {
        for (process, field) in [
            (ArrivalProcess::Poisson { rate: 0.0 }, "rate"),
            (ArrivalProcess::Gamma { rate: 1.0, cv: f64::NAN }, "cv"),
            (ArrivalProcess::Daily { mean_rate: 1.0, peak_factor: 0.5, day_s: 1.0 }, "peak_factor"),
        ] {
            let error = Arrivals::new(process, Rng::with_seed(0)).expect_err("wrong").to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
