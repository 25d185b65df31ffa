//! A command line, configuration file or environment variable that asks for what cannot be. Refuses to know who
//! found it.

/// The process ends with status 2, as for flags that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
