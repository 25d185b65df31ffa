//! Faults of tools: at the start of a server, and in a call.

use throng_api::answer::CallFailure;

/// A fault of the configuration, of a file or of a server that is found before a tool is called.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// A setting is wrong.
    #[error("{setting}: {fault}")]
    Setting {
        /// Path of the setting.
        setting: String,
        /// The fault of the setting.
        fault: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {fault}")]
    File {
        /// Path of the file.
        path: String,
        /// Description of the fault.
        fault: String,
    },
    /// A program cannot run in the sandbox that it is to run in.
    #[error("the tool server '{server}' is refused: its sandbox '{sandbox}' cannot be had: {fault}")]
    Sandbox {
        /// Name of the server.
        server: String,
        /// Name of the sandbox.
        sandbox: String,
        /// Description of the fault.
        fault: String,
    },
    /// A server does not answer as it should.
    #[error("the tool server '{server}' cannot be used: {fault}")]
    Unreachable {
        /// Name of the server.
        server: String,
        /// Description of the fault.
        fault: String,
    },
    /// The tools of a server differ from the approved ones.
    #[error("the tool server '{server}' is refused: {fault}")]
    Unapproved {
        /// Name of the server.
        server: String,
        /// The tools, and the command that approves them.
        fault: String,
    },
    /// A request names a server that it may not use.
    #[error("{0}")]
    Forbidden(String),
}

impl ToolsError {
    pub(crate) fn setting(setting: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::Setting { setting: setting.into(), fault: fault.into() }
    }

    pub(crate) fn unreachable(server: &str, fault: impl ToString) -> Self {
        Self::Unreachable { server: server.to_owned(), fault: fault.to_string() }
    }
}

/// Whether the tool itself is at fault, rather than its arguments.
pub(crate) fn counts_for_breaker(failure: &CallFailure) -> bool {
    matches!(failure, CallFailure::Unanswered { status: 500.., .. })
}

/// Outcome of a failed call in ledgers, metrics and explanations.
pub(crate) fn outcome_of(failure: &CallFailure) -> &'static str {
    match failure {
        CallFailure::Protocol { .. } => "protocol_error",
        CallFailure::Execution { .. } => "tool_error",
        CallFailure::Unanswered { status: 429, .. } => "queue_full",
        CallFailure::Unanswered { status: 504, .. } => "timeout",
        CallFailure::Unanswered { .. } => "unavailable",
    }
}
