//! The error for an invalid command line, configuration file or environment variable. Does not know where it
//! was found.

/// The process ends with status 2, as for flags that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
