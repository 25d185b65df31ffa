//! What an operator says about a roll-out. Does not judge.

use crate::time::Nanos;

/// Most stages of a roll-out.
pub const MAX_STAGES: usize = 32;

/// A part of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Requests that the new version gets, of a hundred.
    pub percent: u32,
    /// Minimum duration of the stage.
    pub hold: Nanos,
}

/// Stages in which a new version takes over, and the bounds that send it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its stages; after the last one it has all requests.
    pub stages: Vec<Stage>,
    /// A stage lasts until so many requests of the new version have ended, and means are compared from so
    /// many of each version on.
    pub min_outcomes: u32,
    /// Number of failures of the new version in a stage that send it back.
    pub min_failures: u32,
    /// Percentage points by which the share of its failures must exceed the old version's for that.
    pub max_failure_excess_percent: u32,
    /// Its times may be so many hundredths of the old version's.
    pub max_slowness_percent: u32,
    /// Least difference that is compared: this for a first token, or a hundredth of it
    /// for a token.
    pub min_excess: Nanos,
    /// Whether its answers to golden prompts are compared: it gets no requests before they were right once.
    pub has_golden: bool,
}

/// Reason why a plan cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// No stages, or too many.
    #[error("there must be 1 to {MAX_STAGES} stages")]
    NumberOfStages,
    /// A stage gives nothing or more than all, or less than the one before it.
    #[error("the stages' percents must be 1 to 100 and rise")]
    Percents,
    /// A number that would switch a judgement off, or make it of nothing.
    #[error("min_outcomes and min_failures must be at least 1, and max_slowness_percent at least 100")]
    Numbers,
}

impl Plan {
    /// A plan with these stages and the usual bounds.
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

    /// Whether it can be used.
    ///
    /// # Errors
    /// A description of the fault.
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
