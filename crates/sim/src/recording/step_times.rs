//! A cost model from the steps of a recording: `a + b · tokens + c · attended positions`, by least squares of
//! relative errors.

use std::time::Duration;

use throng_core::engine::recording::{Event, Step};

use super::reader::RecordingReader;
use crate::cost::{CostModel, StepShape};
use crate::error::SimError;

/// Minimum number of steps for a model.
const MIN_STEPS: u64 = 20;

/// Time of steps as a recording has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedCostModel {
    /// Nanoseconds of a step, of a token, and of a position that a token attends to.
    coefficients: [f64; 3],
    /// Mean relative error over the recorded steps.
    pub mean_error: f64,
    /// Number of steps from which it was fitted.
    pub n_steps: u64,
}

impl CostModel for RecordedCostModel {
    fn step_time(&self, step: &StepShape) -> Duration {
        let features = features(step.n_tokens, step.n_attention_pairs);
        let ns: f64 = self.coefficients.iter().zip(features).map(|(c, x)| c * x).sum();
        Duration::from_nanos(ns.max(0.0) as u64)
    }
}

impl RecordedCostModel {
    /// Reads the steps of a recording.
    ///
    /// # Errors
    /// When the recording is damaged or has too few steps.
    pub fn read(mut open: impl FnMut() -> Result<RecordingReader, SimError>) -> Result<Self, SimError> {
        let mut sums = Sums::default();
        each_step(open()?, |step| sums.add(step))?;
        if sums.n < MIN_STEPS {
            let problem = format!("the recording has {} steps, fewer than {MIN_STEPS}", sums.n);
            return Err(SimError::setting("recording", problem));
        }
        let mut model = Self { coefficients: sums.fit(), mean_error: 0.0, n_steps: sums.n };
        let mut error = 0.0;
        each_step(open()?, |step| {
            let shape = StepShape {
                n_tokens: step.n_tokens,
                n_attention_pairs: step.n_attended,
                ..StepShape::default()
            };
            let predicted = model.step_time(&shape).as_nanos() as f64;
            error += (predicted / step.duration_ns as f64 - 1.0).abs();
        })?;
        model.mean_error = error / model.n_steps as f64;
        Ok(model)
    }
}

fn each_step(mut reader: RecordingReader, mut each: impl FnMut(&Step)) -> Result<(), SimError> {
    while let Some(line) = reader.next_line()? {
        if let Event::Step(step) = line.event
            && !step.failed
            && step.n_tokens > 0
            && step.duration_ns > 0
        {
            each(&step);
        }
    }
    Ok(())
}

fn features(n_tokens: u32, n_attended: u64) -> [f64; 3] {
    [1.0, f64::from(n_tokens), n_attended as f64]
}

/// The sums of the normal equations.
#[derive(Debug, Default)]
struct Sums {
    normal: [[f64; 3]; 3],
    moment: [f64; 3],
    n: u64,
}

impl Sums {
    fn add(&mut self, step: &Step) {
        let weight = 1.0 / step.duration_ns as f64;
        let x = features(step.n_tokens, step.n_attended).map(|x| x * weight);
        for (i, xi) in x.iter().enumerate() {
            for (j, xj) in x.iter().enumerate() {
                self.normal[i][j] += xi * xj;
            }
            self.moment[i] += xi;
        }
        self.n += 1;
    }

    /// Coefficients that are not negative: negative ones are set to zero, the last first.
    fn fit(&self) -> [f64; 3] {
        let mut used = [true; 3];
        loop {
            let solution = self.solve(used);
            match (0..3).rev().find(|&i| solution[i] < 0.0) {
                Some(i) => used[i] = false,
                None => return solution,
            }
        }
    }

    /// Gauss-Jordan elimination, without the features that are unused or linearly dependent.
    fn solve(&self, used: [bool; 3]) -> [f64; 3] {
        let (mut a, mut b) = (self.normal, self.moment);
        let mut solved = [false; 3];
        for pivot in 0..3 {
            let scale = self.normal[pivot][pivot];
            if !used[pivot] || a[pivot][pivot] <= 1e-9 * scale {
                continue;
            }
            solved[pivot] = true;
            let divisor = a[pivot][pivot];
            a[pivot] = a[pivot].map(|value| value / divisor);
            b[pivot] /= divisor;
            for row in (0..3).filter(|row| *row != pivot) {
                let factor = a[row][pivot];
                let of_pivot = a[pivot];
                a[row].iter_mut().zip(of_pivot).for_each(|(value, one)| *value -= factor * one);
                b[row] -= factor * b[pivot];
            }
        }
        std::array::from_fn(|i| if solved[i] { b[i] } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use throng_core::engine::recording::Line;

    use super::super::reader::tests::HEADER;
    use super::*;

    fn open(steps: &[(u32, u64, u64)]) -> Result<RecordingReader, SimError> {
        let line = |(n_tokens, n_attended, duration_ns): &(u32, u64, u64)| {
            let step = Step {
                n_tokens: *n_tokens,
                n_attended: *n_attended,
                duration_ns: *duration_ns,
                n_sequences: 1,
                ..Step::default()
            };
            serde_json::to_string(&Line { at_ns: 1, event: Event::Step(step) }).expect("plain") + "\n"
        };
        let text = format!("{HEADER}\n{}", steps.iter().map(line).collect::<String>());
        RecordingReader::open(Cursor::new(text))
    }

    #[test]
    fn recorded_steps_are_predicted() {
        let steps: Vec<(u32, u64, u64)> = (1..100)
            .map(|n| {
                (
                    n,
                    u64::from(n * n % 37) * 100,
                    5_000_000 + 40_000 * u64::from(n) + 20 * u64::from(n * n % 37) * 100,
                )
            })
            .collect();
        let model = RecordedCostModel::read(|| open(&steps)).expect("steps");
        assert!(model.mean_error < 1e-6, "{model:?}");
        let step = StepShape { n_tokens: 500, n_attention_pairs: 10_000, ..StepShape::default() };
        assert_eq!(model.step_time(&step).as_micros(), 25_200);
    }

    #[test]
    fn steps_of_one_shape_say_nothing_about_others_and_few_are_refused() {
        let steps = vec![(1, 1, 1_000_000); 30];
        let model = RecordedCostModel::read(|| open(&steps)).expect("steps");
        let step = StepShape { n_tokens: 1, n_attention_pairs: 1, ..StepShape::default() };
        assert!((999..=1_000).contains(&model.step_time(&step).as_micros()), "{model:?}");
        let error = RecordedCostModel::read(|| open(&steps[..3])).expect_err("few").to_string();
        assert!(error.contains("3 steps"), "{error}");
    }
}
