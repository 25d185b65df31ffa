//! Errors of inputs: each names the field or the line that is wrong.

use std::io;

/// Reason why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A setting that no run can have.
    #[error("{field}: {problem}")]
    Setting {
        /// Name of the setting.
        field: &'static str,
        /// Reason why the setting is invalid.
        problem: String,
    },
    /// A line of a trace or a recording that cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// Reason why the line is invalid.
        problem: String,
    },
    /// A file without any request.
    #[error("there is no request in it")]
    Empty,
    /// A workload whose requests are not in order of time.
    #[error("request {index} arrives at {at_s} s, before the request in front of it at {before_s} s")]
    TimeRunsBackwards {
        /// Number of the request, from 0.
        index: u64,
        /// Time in seconds.
        at_s: f64,
        /// Time of the previous event in seconds.
        before_s: f64,
    },
    /// Reading the input failed.
    #[error("reading failed: {0}")]
    Read(#[from] io::Error),
}

impl SimError {
    /// Creates the error of a setting.
    pub fn setting(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting { field, problem: problem.into() }
    }

    /// Creates the error of a line.
    pub fn line(line: u64, problem: impl Into<String>) -> Self {
        Self::Line { line, problem: problem.into() }
    }
}

/// Checks that a number is finite and above 0.
///
/// # Errors
/// The error names the field.
pub fn check_positive(field: &'static str, value: f64) -> Result<f64, SimError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(SimError::setting(field, format!("{value} is not a number above 0")))
    }
}

/// Checks that a number is finite and not negative.
///
/// # Errors
/// The error names the field.
pub fn check_not_negative(field: &'static str, value: f64) -> Result<f64, SimError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(SimError::setting(field, format!("{value} is not a number of at least 0")))
    }
}
