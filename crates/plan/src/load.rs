//! Load of users: requests a second, lengths, and the share of prompts that is cached.

use crate::error::{PlanError, not_negative, positive, share};

/// Number of standard deviations above the mean of a normal distribution that 1 % of values exceed.
pub(crate) const Z99: f64 = 2.326;

/// Number of seconds of a day.
const DAY_S: f64 = 86_400.0;

/// A log-normal length in tokens; constant where the variation is 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Length {
    /// Mean of the length.
    pub mean: f64,
    /// Standard deviation, relative to the mean.
    pub variation: f64,
    /// The longest, if it is known.
    pub most: Option<f64>,
}

impl Length {
    /// A constant length.
    pub fn constant(mean: f64) -> Self {
        Self { mean, variation: 0.0, most: None }
    }

    /// Standard deviation of the logarithm.
    pub fn sigma(&self) -> f64 {
        (1.0 + self.variation * self.variation).ln().sqrt()
    }

    /// Median of the length.
    pub fn median(&self) -> f64 {
        self.mean * (-self.sigma() * self.sigma() / 2.0).exp()
    }

    /// The length that 1 % exceed.
    pub fn p99(&self) -> f64 {
        let modelled = self.median() * (Z99 * self.sigma()).exp();
        self.most.map_or(modelled, |most| modelled.min(most))
    }
}

/// A load: lengths and rate of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Requests a second, at random times.
    pub requests_per_s: f64,
    /// Number of tokens of a prompt.
    pub prompt: Length,
    /// Number of tokens of an answer.
    pub output: Length,
    /// Share of prompt tokens whose keys and values are still in the device's memory.
    pub cached_share: f64,
    /// Further share whose keys and values are in the host's memory.
    pub host_cached_share: f64,
}

impl Load {
    /// Checks all numbers.
    ///
    /// # Errors
    /// When one is invalid; the error names it.
    pub fn check(&self) -> Result<(), PlanError> {
        positive("requests a second", self.requests_per_s)?;
        for (name, length) in [("prompt", self.prompt), ("output", self.output)] {
            positive(&format!("{name} tokens"), length.mean)?;
            not_negative(&format!("variation of {name} tokens"), length.variation)?;
        }
        share("the cached share", self.cached_share)?;
        share("the share cached in host memory", self.host_cached_share)?;
        share("the sum of both cached shares", self.cached_share + self.host_cached_share)?;
        Ok(())
    }

    /// The same lengths at another rate.
    #[must_use]
    pub fn at(self, requests_per_s: f64) -> Self {
        Self { requests_per_s, ..self }
    }

    /// Mean number of tokens before the next one of a sequence that decodes. Long answers decode longer, so
    /// that a sequence seen at a random time has more than half of a mean answer behind it.
    pub fn decode_context(&self) -> f64 {
        self.prompt.mean + self.output.mean / 2.0 * (1.0 + self.output.variation.powi(2))
    }

    /// Prompt tokens that are computed, of a prompt of this length.
    pub fn computed(&self, prompt: f64) -> f64 {
        (prompt * (1.0 - self.cached_share - self.host_cached_share)).max(1.0)
    }
}

/// A crowd by its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crowd {
    /// Number of users.
    pub users: f64,
    /// Requests of a user a day.
    pub requests_per_day: f64,
    /// Requests at the busiest time, relative to the mean.
    pub peak_factor: f64,
}

impl Crowd {
    /// Mean number of requests per second.
    pub fn mean_requests_per_s(&self) -> f64 {
        self.users * self.requests_per_day / DAY_S
    }

    /// Requests a second at the busiest time.
    ///
    /// # Errors
    /// When a number is invalid; the error names it.
    pub fn peak_requests_per_s(&self) -> Result<f64, PlanError> {
        positive("users", self.users)?;
        positive("requests a day", self.requests_per_day)?;
        if !(self.peak_factor.is_finite() && self.peak_factor >= 1.0) {
            return Err(PlanError::value(
                "peak factor",
                self.peak_factor,
                "expected a finite number of at least 1",
            ));
        }
        Ok(self.mean_requests_per_s() * self.peak_factor)
    }
}

/// Requests per second of people who repeatedly send a request, read the answer and pause.
///
/// # Errors
/// When a number is invalid; the error names it.
pub fn requests_of_people(n_people: f64, answer_s: f64, pause_s: f64) -> Result<f64, PlanError> {
    positive("people", n_people)?;
    not_negative("seconds of an answer", answer_s)?;
    not_negative("seconds of a pause", pause_s)?;
    Ok(n_people / positive("seconds of an answer and a pause", answer_s + pause_s)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_log_normal_length_are_those_of_its_formula() {
        let length = Length { mean: 500.0, variation: 1.0, most: None };
        assert!((length.median() - 500.0 / 2.0_f64.sqrt()).abs() < 1e-9);
        assert!((length.p99() / length.median() - (2.326 * 2.0_f64.ln().sqrt()).exp()).abs() < 1e-9);
        assert_eq!(Length::constant(7.0).p99(), 7.0);
        assert_eq!(Length { most: Some(600.0), ..length }.p99(), 600.0, "none is longer than the longest");
    }

    #[test]
    fn a_crowd_is_spread_over_its_day() {
        let crowd = Crowd { users: 700e6, requests_per_day: 2.0, peak_factor: 3.0 };
        assert_eq!(crowd.mean_requests_per_s().round(), 16_204.0);
        assert_eq!(crowd.peak_requests_per_s().expect("sizes").round(), 48_611.0);
        let nobody = Crowd { users: f64::NAN, ..crowd }.peak_requests_per_s();
        assert_eq!(nobody.expect_err("NaN").to_string(), "users is NaN: expected a finite number above 0");
        let lull = Crowd { peak_factor: 0.5, ..crowd }.peak_requests_per_s();
        assert!(lull.expect_err("below the mean").to_string().starts_with("peak factor is 0.5"));
    }
}
