//! Reasons why a plan cannot be computed, each naming the invalid value.

/// Reason why a plan, a prediction or a description was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number that is invalid.
    #[error("{name} is {value}: {expected}")]
    Value {
        /// Name of the field.
        name: String,
        /// The invalid value.
        value: String,
        /// Condition that it must meet.
        expected: &'static str,
    },
    /// A figure is missing in the description of a machine.
    #[error("the machine {machine} has no {figure}, which is needed {purpose}")]
    NoFigure {
        /// Name of the machine.
        machine: String,
        /// Name of the figure in its description.
        figure: &'static str,
        /// Use of the figure.
        purpose: &'static str,
    },
    /// A machine that is in no description.
    #[error("there is no machine {name} (there are: {known})")]
    NoMachine {
        /// Name of the machine.
        name: String,
        /// Known names.
        known: String,
    },
    /// A description that is not in the expected form.
    #[error("{what}: {reason}")]
    Malformed {
        /// Name of the description.
        what: String,
        /// Reason for the error.
        reason: String,
    },
    /// A value beyond those that a cost model was fitted on.
    #[error("{name} is {value}, outside the calibrated range of {by}: {low} to {high}")]
    OutOfRange {
        /// Name of the step's property.
        name: &'static str,
        /// The value of the property.
        value: f64,
        /// Name of the cost model.
        by: String,
        /// Smallest value that was measured.
        low: f64,
        /// Largest value that was measured.
        high: f64,
    },
    /// A model that does not fit the memory.
    #[error("{model} needs {needed_gib:.1} GiB of each {on}, of which {usable_gib:.1} GiB may be used")]
    TooLarge {
        /// Name of the model.
        model: String,
        /// GiB of weights on a device, and of the keys and values of one long request.
        needed_gib: f64,
        /// The machine and its parallelism.
        on: String,
        /// Usable GiB of a device.
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
        /// Number of changes from growing to shrinking or back.
        n_turns: usize,
        /// Hours until the beginning of the busiest hour.
        from_h: f64,
        /// Maximum number of times that are accepted.
        most: usize,
    },
    /// A load that cannot be met with any number of sequences at once.
    #[error("{on} cannot meet {target}: {reason}")]
    Unreachable {
        /// The machine and its parallelism.
        on: String,
        /// Name of the target.
        target: &'static str,
        /// The best values that can be reached.
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
