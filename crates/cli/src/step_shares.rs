//! The time that each part of a decode step takes, from the engine's step log. Does not know how steps run.

use serde::Serialize;
use throng_engine::StepRecord;

/// Parts of a decode step in milliseconds, each the median over all steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepShares {
    /// Time from the planning of one step to that of the next: the sum of the parts below, except that
    /// medians do not add up exactly.
    pub step_ms: f64,
    /// Scheduling and building the batch.
    pub planning_ms: f64,
    /// The forward pass, including logits.
    pub forward_ms: f64,
    /// Sampling tokens from logits.
    pub choosing_ms: f64,
    /// Time of passing the step from the engine's thread to the executor's and back.
    pub handing_over_ms: f64,
    /// Recording tokens, sending them to the streams, and reading requests that arrived meanwhile.
    pub ending_ms: f64,
    /// The share of the step that is not the forward pass.
    pub not_forward_percent: f64,
}

impl StepShares {
    /// Computes the medians over the steps in `log` (oldest first) in which exactly `n_users` sequences
    /// decoded, each followed by another such step.
    pub fn of_decode(log: &[StepRecord], n_users: u32) -> Option<Self> {
        let is_decode = |step: &StepRecord| {
            step.succeeded && [step.n_sequences, step.n_sampled, step.n_tokens].iter().all(|&n| n == n_users)
        };
        let is_pair = |pair: &&[StepRecord]| {
            pair.iter().all(is_decode) && pair[1].number == pair[0].number + 1 && pair[1].n_arrivals == 0
        };
        let pairs: Vec<_> = log.windows(2).filter(is_pair).map(|pair| (pair[0], pair[1])).collect();
        let median_ms = |part: &dyn Fn(&StepRecord, f64) -> f64| {
            let of = |(step, next): &(StepRecord, StepRecord)| {
                part(step, next.started.since(step.started).as_ms_f64())
            };
            let mut all: Vec<f64> = pairs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied()
        };
        let forward = |step: &StepRecord| step.executing.as_ms_f64() - step.choosing.as_ms_f64();
        Some(Self {
            step_ms: median_ms(&|_, whole| whole)?,
            planning_ms: median_ms(&|step, _| step.planning.as_ms_f64())?,
            forward_ms: median_ms(&|step, _| forward(step))?,
            choosing_ms: median_ms(&|step, _| step.choosing.as_ms_f64())?,
            handing_over_ms: median_ms(&|step, _| {
                step.duration.as_ms_f64() - step.planning.as_ms_f64() - step.executing.as_ms_f64()
            })?,
            ending_ms: median_ms(&|step, whole| whole - step.duration.as_ms_f64())?,
            not_forward_percent: median_ms(&|step, whole| 100.0 * (1.0 - forward(step) / whole))?,
        })
    }
}
