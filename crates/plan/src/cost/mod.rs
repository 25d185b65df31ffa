//! Durations of steps: from published peaks and measured operators of a machine, or from the step log of a
//! running engine.

pub mod calibration;
pub mod collective;
pub mod fit;
pub mod product;
pub mod roofline;
pub mod tables;

pub use calibration::Calibration;
pub use roofline::Roofline;

use std::time::Duration;

use throng_sim::cost::{CostModel, StepShape};

use crate::error::PlanError;

/// Maximum duration of a step in seconds: bad figures make steps long, and times stay finite.
const MAX_STEP_S: f64 = 1e6;

/// A cost model that reports the steps that it was fitted on.
pub trait StepCost: CostModel {
    /// Checks that a step is not larger than those that were measured.
    ///
    /// # Errors
    /// When it is; the error names the property and the range.
    fn check_range(&self, step: &StepShape) -> Result<(), PlanError>;
}

/// A duration of this number of seconds, at most [`MAX_STEP_S`]. Negative numbers and NaN give zero.
fn duration(seconds: f64) -> Duration {
    let seconds = if seconds > 0.0 { seconds } else { 0.0 };
    Duration::from_secs_f64(seconds.min(MAX_STEP_S))
}
