//! Plan of a roll-out, from the operator. Does not judge.

use crate::time::Nanos;

/// Maximum number of stages of a roll-out.
pub const MAX_STAGES: usize = 32;

/// A stage of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Percentage of requests for the new version.
    pub percent: u32,
    /// Minimum duration of the stage.
    pub hold: Nanos,
}

/// Stages in which requests move to a new version, and the bounds that roll it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Stages; after the last one the new version has all requests.
    pub stages: Vec<Stage>,
    /// Number of ended requests of the new version before a stage can end, and of both versions before
    /// means are compared.
    pub min_outcomes: u32,
    /// Minimum number of failures of the new version in a stage that roll it back.
    pub min_failures: u32,
    /// Percentage points by which the share of failures must exceed the old version's for a rollback.
    pub max_failure_excess_percent: u32,
    /// Maximum of the new version's mean times, in percent of the old version's.
    pub max_slowness_percent: u32,
    /// Minimum difference of mean times to first token for a rollback; for further tokens, a hundredth of
    /// it.
    pub min_excess: Nanos,
    /// Whether answers to golden prompts are compared: the new version gets no requests before they were
    /// right once.
    pub has_golden: bool,
}

/// Reason why a plan is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// The plan has no stages, or too many.
    #[error("there must be 1 to {MAX_STAGES} stages")]
    NumberOfStages,
    /// The percentage of a stage is 0, above 100, or below that of the stage before.
    #[error("the stages' percents must be 1 to 100 and rise")]
    Percents,
    /// A number that would disable a judgement, or base it on no requests.
    #[error("min_outcomes and min_failures must be at least 1, and max_slowness_percent at least 100")]
    Numbers,
}

impl Plan {
    /// Creates a plan with these stages and the default bounds.
    pub fn of(stages: Vec<Stage>) -> Self {
        Self {
            stages,
            min_outcomes: 20,
            min_failures: 3,
            max_failure_excess_percent: 2,
            max_slowness_percent: 200,
            min_excess: Nanos::from_ms(50),
            has_golden: false,
        }
    }

    /// Checks the plan.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), InvalidPlan> {
        if self.stages.is_empty() || self.stages.len() > MAX_STAGES {
            return Err(InvalidPlan::NumberOfStages);
        }
        let percents = || self.stages.iter().map(|stage| stage.percent);
        if !percents().all(|percent| (1..=100).contains(&percent)) || !percents().is_sorted_by(|a, b| a < b) {
            return Err(InvalidPlan::Percents);
        }
        if self.min_outcomes == 0 || self.min_failures == 0 || self.max_slowness_percent < 100 {
            return Err(InvalidPlan::Numbers);
        }
        Ok(())
    }
}
