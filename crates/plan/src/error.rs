//! Reasons why something cannot be planned, each naming the value that is at fault.

/// Reason why a plan, a prediction or a description was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number that makes no sense.
    #[error("{name} is {value}: {expected}")]
    Value {
        /// The field.
        name: String,
        /// Its value.
        value: String,
        /// Condition that it must meet.
        expected: &'static str,
    },
    /// A figure that the description of a machine lacks.
    #[error("the machine {machine} has no {figure}, which is needed {purpose}")]
    NoFigure {
        /// The machine.
        machine: String,
        /// Name of the figure in its description.
        figure: &'static str,
        /// Use of the figure.
        purpose: &'static str,
    },
    /// A machine that is in no description.
    #[error("there is no machine {name} (there are: {known})")]
    NoMachine {
        /// The name.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// A description that is not in the expected form.
    #[error("{what}: {reason}")]
    Malformed {
        /// The description.
        what: String,
        /// Its fault.
        reason: String,
    },
    /// A value beyond those that a cost model was fitted on.
    #[error("{name} is {value}, outside the calibrated range of {by}: {low} to {high}")]
    OutOfRange {
        /// The property of a step.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The cost model.
        by: String,
        /// Smallest value that was measured.
        low: f64,
        /// Largest value that was measured.
        high: f64,
    },
    /// A model that does not fit the memory.
    #[error("{model} needs {needed_gib:.1} GiB of each {on}, of which {usable_gib:.1} GiB may be used")]
    TooLarge {
        /// The model.
        model: String,
        /// GiB of weights on a device, and of the keys and values of one long request.
        needed_gib: f64,
        /// The machine and its parallelism.
        on: String,
        /// GiB that may be used.
        usable_gib: f64,
    },
    /// A policy of an autoscaler that grows and shrinks a fleet again and again.
    #[error(
        "the autoscaling policy ({policy}) oscillates: it turned round {n_turns} times in the hour from {from_h:.1} h on, \
         expected at most {most}"
    )]
    Oscillates {
        /// Settings of the policy.
        policy: String,
        /// Times that growing followed on shrinking, or the other way round.
        n_turns: usize,
        /// Hours until the hour with most of them begins.
        from_h: f64,
        /// Most times that are accepted.
        most: usize,
    },
    /// A load that no number of sequences at once meets.
    #[error("{on} cannot meet {target}: {reason}")]
    Unreachable {
        /// The machine and its parallelism.
        on: String,
        /// The target.
        target: &'static str,
        /// The values that are the best.
        reason: String,
    },
}

impl PlanError {
    /// Error of a value.
    pub fn value(name: impl Into<String>, value: impl ToString, expected: &'static str) -> Self {
        Self::Value { name: name.into(), value: value.to_string(), expected }
    }
}

/// Checks that a number is finite and above zero.
///
/// # Errors
/// When it is not; the error names it.
pub fn positive(name: &str, value: f64) -> Result<f64, PlanError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(PlanError::value(name, value, "expected a finite number above 0"))
}

/// Checks that a number is finite and not below zero.
///
/// # Errors
/// When it is not; the error names it.
pub fn not_negative(name: &str, value: f64) -> Result<f64, PlanError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(PlanError::value(name, value, "expected a finite number that is not negative"))
}

/// Checks that a number is a share, from 0 to 1.
///
/// # Errors
/// When it is not; the error names it.
pub fn share(name: &str, value: f64) -> Result<f64, PlanError> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(PlanError::value(name, value, "expected a number from 0 to 1"))
}
