//! A crowd by the numbers in which people speak of one: users a week, requests a day, tokens, and the peak.

use serde::{Deserialize, Serialize};
use throng_core::time::Nanos;

use super::arrivals::ArrivalProcess;
use super::open_loop::{OpenLoop, RequestShape};
use crate::distribution::Distribution;
use crate::error::{SimError, check_positive};

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// The users of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crowd {
    /// Users of a week; all of them ask on each day.
    pub weekly_users: f64,
    /// Requests of a user on a day.
    pub requests_per_day: f64,
    /// Tokens of a prompt.
    pub prompt: Distribution,
    /// Tokens of an answer.
    pub output: Distribution,
    /// Rate at the peak of the day in parts of the mean.
    pub peak_factor: f64,
}

impl Crowd {
    /// Mean requests a second.
    pub fn mean_rate(&self) -> f64 {
        self.weekly_users * self.requests_per_day / DAY_S
    }

    /// Requests a second at the peak.
    pub fn peak_rate(&self) -> f64 {
        self.mean_rate() * self.peak_factor
    }

    /// The first `duration` of a day of a random part of the crowd. `fraction` 1 is the whole crowd.
    ///
    /// # Errors
    /// When a number cannot be one of a crowd.
    pub fn day(&self, fraction: f64, duration: Nanos, seed: u64) -> Result<OpenLoop, SimError> {
        let mean_rate = self.checked_rate(fraction)?;
        let process = ArrivalProcess::Daily { mean_rate, peak_factor: self.peak_factor, day_s: DAY_S };
        OpenLoop::new(process, self.shape(), duration, seed)
    }

    /// The hour of the peak, or a time as long as `duration`, at the rate of the peak.
    ///
    /// # Errors
    /// When a number cannot be one of a crowd.
    pub fn peak(&self, fraction: f64, duration: Nanos, seed: u64) -> Result<OpenLoop, SimError> {
        let rate = self.checked_rate(fraction)? * check_positive("peak_factor", self.peak_factor)?;
        OpenLoop::new(ArrivalProcess::Poisson { rate }, self.shape(), duration, seed)
    }

    fn checked_rate(&self, fraction: f64) -> Result<f64, SimError> {
        check_positive("weekly_users", self.weekly_users)?;
        check_positive("requests_per_day", self.requests_per_day)?;
        check_positive("fraction", fraction)?;
        Ok(self.mean_rate() * fraction)
    }

    fn shape(&self) -> RequestShape {
        RequestShape::new(self.prompt.clone(), self.output.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn a_crowd_of_700_million_asks_16_thousand_times_a_second() {
        let crowd = Crowd {
            weekly_users: 700e6,
            requests_per_day: 2.0,
            prompt: Distribution::Constant(500.0),
            output: Distribution::Constant(300.0),
            peak_factor: 3.0,
        };
        assert_eq!((crowd.mean_rate() as u64, crowd.peak_rate() as u64), (16_203, 48_611));
        let mut peak = crowd.peak(1e-3, Nanos::from_ms(100_000), 1).expect("valid");
        let n = std::iter::from_fn(|| peak.next_request().expect("no file")).count();
        assert!((4_600..5_100).contains(&n), "{n}");
        let nobody = Crowd { weekly_users: 0.0, ..crowd };
        assert!(nobody.day(1.0, Nanos(1), 0).expect_err("wrong").to_string().starts_with("weekly_users"));
    }
}
