//! Reasons why an engine does not start.

use throng_core::scheduling::executor::ExecutorError;

/// Reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The executor could not be created.
    #[error("the executor could not be made: {0}")]
    Executor(#[from] ExecutorError),
    /// Making the executor panicked.
    #[error("making the executor panicked: {0}")]
    ExecutorPanicked(String),
    /// The operating system could not start a thread.
    #[error("no thread could be started: {0}")]
    Thread(#[from] std::io::Error),
}
