//! Durations of the steps of a live engine, fitted to its step log. Steps outside the measured range are
//! refused by name.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use throng_sim::cost::{CostModel, StepShape};

use super::fit::error_bar;
use super::product::joined;
use super::{StepCost, duration};
use crate::error::{PlanError, positive};
use crate::machine::ErrorBar;
use crate::minimize::minimize;

/// Minimum number of steps for a fit.
const MIN_STEPS: usize = 40;

/// Quantiles of the spread of durations that a fit keeps; also their maximum in a file.
const N_QUANTILES: usize = 64;
const MAX_QUANTILES: usize = 1024;

/// Version of the form of a calibration.
const VERSION: u32 = 1;

/// A step of a running engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSample {
    /// Shape of the step.
    pub shape: StepShape,
    /// Seconds from its plan to its result.
    pub seconds: f64,
}

/// Smallest and largest value that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Smallest measured value.
    pub low: f64,
    /// Largest measured value.
    pub high: f64,
}

/// A fit of durations of steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the file's form.
    pub version: u32,
    /// Measured model and machine.
    pub name: String,
    /// Fixed seconds of a step.
    pub fixed_s: f64,
    /// Seconds to read the weights. Tokens are multiplied at the same time.
    pub reading_s: f64,
    /// Seconds of multiplying one token.
    pub token_s: f64,
    /// Exponent that joins reading and multiplying.
    pub sharpness: f64,
    /// Seconds for each sequence.
    pub sequence_s: f64,
    /// Seconds of the logits of one token.
    pub logits_s: f64,
    /// Seconds for each pair of a token and a position that it attends to.
    pub pair_s: f64,
    /// Mean of the measured durations relative to those that the numbers above give, which are medians.
    #[serde(default = "one")]
    pub mean_ratio: f64,
    /// Durations of equal steps divided by their mean, at evenly spaced quantiles.
    #[serde(default)]
    pub spread: Vec<f64>,
    /// Numbers of sequences in the measured steps.
    pub sequences: Range,
    /// Numbers of tokens in the measured steps.
    pub tokens: Range,
    /// Numbers of attended pairs in the measured steps.
    pub pairs: Range,
    /// Number of steps of the fit.
    pub n_fitted: usize,
    /// Number of steps that the fit did not use, from which the errors are computed.
    pub n_tested: usize,
    /// Errors of those.
    pub error: ErrorBar,
}

fn one() -> f64 {
    1.0
}

/// The properties of a step that durations follow from.
fn properties(shape: &StepShape) -> [f64; 4] {
    [
        f64::from(shape.n_sequences),
        f64::from(shape.n_tokens),
        f64::from(shape.n_logits),
        shape.n_attention_pairs as f64,
    ]
}

fn seconds(p: &[f64; 7], shape: &StepShape) -> f64 {
    let [n_sequences, n_tokens, n_logits, n_pairs] = properties(shape);
    let [fixed, reading, token, sharpness, sequence, logits, pair] = *p;
    fixed
        + joined(reading, token * n_tokens, sharpness)
        + sequence * n_sequences
        + logits * n_logits
        + pair * n_pairs
}

impl Calibration {
    /// Fits two thirds of the steps of a log, and takes the error from the others.
    ///
    /// # Errors
    /// When there are too few steps, or one has a duration that is invalid.
    pub fn fit(name: &str, steps: &[StepSample]) -> Result<Self, PlanError> {
        if let Some(step) = steps.iter().find(|step| !(step.seconds.is_finite() && step.seconds > 0.0)) {
            return Err(PlanError::value(
                "the duration of a step",
                step.seconds,
                "expected a finite number above 0",
            ));
        }
        if steps.len() < MIN_STEPS {
            return Err(PlanError::value("the number of steps", steps.len(), "expected at least 40"));
        }
        let is_tested = |idx: usize| idx % 3 == 2;
        let part = |tested: bool| -> Vec<StepSample> {
            steps
                .iter()
                .enumerate()
                .filter(|(idx, _)| is_tested(*idx) == tested)
                .map(|(_, step)| *step)
                .collect()
        };
        let (fitted, tested) = (part(false), part(true));
        let p = fitted_parameters(&fitted);
        let (mean_ratio, spread) = spread(&p, &fitted);
        let pairs = tested.iter().map(|step| (seconds(&p, &step.shape), step.seconds));
        let error = error_bar(pairs).expect("there are steps");
        let range = |of: fn(&StepShape) -> f64| {
            let values = steps.iter().map(|step| of(&step.shape));
            Range { low: values.clone().fold(f64::INFINITY, f64::min), high: values.fold(0.0, f64::max) }
        };
        let [fixed_s, reading_s, token_s, sharpness, sequence_s, logits_s, pair_s] = p;
        Ok(Self {
            version: VERSION,
            name: name.to_owned(),
            fixed_s,
            reading_s,
            token_s,
            sharpness,
            sequence_s,
            logits_s,
            pair_s,
            mean_ratio,
            spread,
            sequences: range(|shape| f64::from(shape.n_sequences)),
            tokens: range(|shape| f64::from(shape.n_tokens)),
            pairs: range(|shape| shape.n_attention_pairs as f64),
            n_fitted: fitted.len(),
            n_tested: tested.len(),
            error,
        })
    }

    /// Checks that a calibration from a file can be used.
    ///
    /// # Errors
    /// When it has another version, or a number is invalid.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.version != VERSION {
            return Err(PlanError::value("the version of the calibration", self.version, "expected 1"));
        }
        let numbers = [
            ("fixed_s", self.fixed_s),
            ("reading_s", self.reading_s),
            ("token_s", self.token_s),
            ("sharpness", self.sharpness),
            ("sequence_s", self.sequence_s),
            ("logits_s", self.logits_s),
            ("pair_s", self.pair_s),
        ];
        for (name, value) in numbers {
            crate::error::not_negative(&format!("{name} of the calibration"), value)?;
        }
        positive("mean_ratio of the calibration", self.mean_ratio)?;
        if self.spread.len() > MAX_QUANTILES {
            return Err(PlanError::value("the length of spread", self.spread.len(), "expected at most 1024"));
        }
        for &ratio in &self.spread {
            positive("spread of the calibration", ratio)?;
        }
        Ok(())
    }

    fn parameters(&self) -> [f64; 7] {
        [
            self.fixed_s,
            self.reading_s,
            self.token_s,
            self.sharpness,
            self.sequence_s,
            self.logits_s,
            self.pair_s,
        ]
    }
}

impl CostModel for Calibration {
    fn step_time(&self, step: &StepShape) -> Duration {
        duration(self.mean_ratio * seconds(&self.parameters(), step))
    }

    fn spread(&self) -> &[f64] {
        &self.spread
    }
}

impl StepCost for Calibration {
    fn check_range(&self, step: &StepShape) -> Result<(), PlanError> {
        let [n_sequences, n_tokens, _, n_pairs] = properties(step);
        let properties = [
            ("sequences of a step", n_sequences, self.sequences),
            ("tokens of a step", n_tokens, self.tokens),
            ("pairs of a token and a position", n_pairs, self.pairs),
        ];
        for (name, value, Range { low, high }) in properties {
            if value > high {
                return Err(PlanError::OutOfRange { name, value, by: self.name.clone(), low, high });
            }
        }
        Ok(())
    }
}

/// Mean of measured over predicted durations, and their quantiles relative to that mean.
fn spread(p: &[f64; 7], steps: &[StepSample]) -> (f64, Vec<f64>) {
    let mut ratios: Vec<f64> = steps.iter().map(|step| step.seconds / seconds(p, &step.shape)).collect();
    ratios.sort_by(f64::total_cmp);
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let at = |i: usize| ratios[(2 * i + 1) * ratios.len() / (2 * N_QUANTILES)] / mean;
    (mean, (0..N_QUANTILES).map(at).collect())
}

/// The parameters with the smallest mean factor between prediction and measurement. The search begins with
/// shares of the shortest and of the longest step.
fn fitted_parameters(steps: &[StepSample]) -> [f64; 7] {
    let mut durations: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    durations.sort_by(f64::total_cmp);
    let (shortest, longest) = (durations[0], durations[durations.len() - 1]);
    let most = |of: fn(&StepShape) -> f64| steps.iter().map(|step| of(&step.shape)).fold(1.0, f64::max);
    let scales = [
        shortest,
        shortest,
        longest / most(|shape| f64::from(shape.n_tokens)),
        1.0,
        shortest / most(|shape| f64::from(shape.n_sequences)),
        shortest / most(|shape| f64::from(shape.n_logits)),
        longest / most(|shape| shape.n_attention_pairs as f64),
    ];
    let parameters = |x: &[f64]| {
        let mut p: [f64; 7] = std::array::from_fn(|i| scales[i] * x[i].exp());
        p[3] += 1.0;
        p
    };
    let cost = |x: &[f64]| {
        let p = parameters(x);
        let errors = steps.iter().map(|step| (seconds(&p, &step.shape) / step.seconds).ln().abs());
        errors.sum::<f64>() / steps.len() as f64
    };
    let start = [-2.0, -0.7, -0.7, 0.5, -2.0, -2.0, -2.0];
    let once = minimize(&start, 0.7, cost);
    // A second search from where the first ended leaves corners that lie in one plane.
    parameters(&minimize(&once, 0.5, cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<StepSample> {
        let truth = [1e-3, 20e-3, 0.4e-3, 4.0, 0.05e-3, 0.1e-3, 2e-8];
        let decode = (1..=32).flat_map(|n| [100, 1000].map(|context| (n, n, u64::from(n) * context)));
        let prefill = (1..=64).map(|i| (1 + i % 8, 8 * i, u64::from(i) * 4000));
        decode
            .chain(prefill)
            .map(|(n_sequences, n_tokens, n_attention_pairs)| {
                let shape = StepShape {
                    n_sequences,
                    n_tokens,
                    n_logits: n_sequences,
                    n_attention_pairs,
                    ..StepShape::default()
                };
                StepSample { shape, seconds: seconds(&truth, &shape) }
            })
            .collect()
    }

    #[test]
    fn steps_that_the_fit_did_not_see_are_predicted() {
        let calibration = Calibration::fit("paper", &samples()).expect("enough steps");
        assert!(calibration.error.median < 0.02 && calibration.error.p90 < 0.06, "{calibration:?}");
        assert_eq!((calibration.n_fitted, calibration.n_tested), (86, 42));
    }

    /// Where every second step takes twice as long, so do half of the simulated ones.
    #[test]
    fn equal_steps_differ_as_they_were_measured() {
        let mut noisy = samples();
        noisy.iter_mut().step_by(2).for_each(|step| step.seconds *= 2.0);
        let calibration = Calibration::fit("paper", &noisy).expect("enough steps");
        let spread = calibration.spread();
        assert_eq!(spread.len(), N_QUANTILES);
        assert!(spread[N_QUANTILES - 4] / spread[4] > 1.7, "{spread:?}");
        let mean = spread.iter().sum::<f64>() / spread.len() as f64;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        let even = Calibration::fit("paper", &samples()).expect("enough steps");
        assert!((even.mean_ratio - 1.0).abs() < 0.05 && even.spread[60] / even.spread[4] < 1.2, "{even:?}");
    }

    #[test]
    fn larger_steps_than_measured_are_refused_by_name() {
        let calibration = Calibration::fit("paper", &samples()).expect("enough steps");
        let shape = StepShape { n_sequences: 1, n_tokens: 513, ..StepShape::default() };
        let error = calibration.check_range(&shape).expect_err("too many tokens").to_string();
        assert_eq!(error, "tokens of a step is 513, outside the calibrated range of paper: 1 to 512");
        let shape = StepShape { n_sequences: 33, n_tokens: 33, ..StepShape::default() };
        let error = calibration.check_range(&shape).expect_err("too many sequences").to_string();
        assert!(error.starts_with("sequences of a step is 33"), "{error}");
        let shape =
            StepShape { n_sequences: 1, n_tokens: 1, n_attention_pairs: 256_001, ..StepShape::default() };
        let error = calibration.check_range(&shape).expect_err("too many pairs").to_string();
        assert!(error.starts_with("pairs of a token and a position is 256001"), "{error}");
    }

    #[test]
    fn too_few_and_impossible_steps_are_refused() {
        let few = Calibration::fit("paper", &samples()[..30]).expect_err("too few");
        assert_eq!(few.to_string(), "the number of steps is 30: expected at least 40");
        let mut broken = samples();
        broken[3].seconds = f64::NAN;
        assert!(Calibration::fit("paper", &broken).is_err());
    }

    #[test]
    fn a_calibration_survives_its_file_and_a_broken_one_is_refused() {
        let calibration = Calibration::fit("paper", &samples()).expect("enough steps");
        let text = serde_json::to_string(&calibration).expect("plain numbers");
        let read: Calibration = serde_json::from_str(&text).expect("its form");
        let shape =
            StepShape { n_sequences: 9, n_tokens: 90, n_attention_pairs: 900, ..StepShape::default() };
        assert!(read.check().is_ok() && read.check_range(&shape).is_ok());
        assert_eq!(calibration.step_time(&shape), read.step_time(&shape));
        let broken = Calibration { token_s: f64::NAN, ..calibration.clone() };
        assert!(broken.check().expect_err("NaN").to_string().contains("token_s of the calibration is NaN"));
        assert!(Calibration { version: 7, ..calibration }.check().is_err());
    }
}
