//! The error for an invalid command line, configuration file or environment variable. Does not know where
//! the mistake is.

/// Error of the user's input. The process exits with status 2, as for flags that do not parse.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
