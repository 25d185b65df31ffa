//! Everything that goes wrong with tools: at the start of a server, and in a call.

use serde_json::Value;
use throng_api::answer::CallFailure;

/// A fault of the configuration, of a file or of a server that is found before a tool is called.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// A setting is wrong.
    #[error("{setting}: {fault}")]
    Setting {
        /// The setting's path.
        setting: String,
        /// The fault.
        fault: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {fault}")]
    File {
        /// The file.
        path: String,
        /// The fault.
        fault: String,
    },
    /// A program cannot run in the sandbox that it is to run in.
    #[error("the tool server '{server}' is refused: its sandbox '{sandbox}' cannot be had: {fault}")]
    Sandbox {
        /// The server.
        server: String,
        /// The sandbox.
        sandbox: String,
        /// The fault.
        fault: String,
    },
    /// A server does not answer as it should.
    #[error("the tool server '{server}' cannot be used: {fault}")]
    Unreachable {
        /// The server.
        server: String,
        /// The fault.
        fault: String,
    },
    /// The tools of a server are not those that were approved.
    #[error("the tool server '{server}' is refused: {fault}")]
    Unapproved {
        /// The server.
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

/// The failure of a call, which the model and the client are told.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The server refused the call as its protocol has it.
    #[error("{message}")]
    Protocol {
        /// JSON-RPC's code.
        code: i64,
        /// The server's words.
        message: String,
    },
    /// The tool ran and failed.
    #[error("{text}")]
    Execution {
        /// Its output as text.
        text: String,
        /// Its output as the server gave it.
        content: Value,
    },
    /// The call has no answer: the status of an HTTP endpoint, or the one that fits.
    #[error("{message}")]
    Http {
        /// The status.
        code: u16,
        /// The reason.
        message: String,
    },
}

impl CallError {
    pub(crate) fn http(code: u16, message: impl Into<String>) -> Self {
        Self::Http { code, message: message.into() }
    }

    /// Whether the tool itself is at fault, rather than what it was asked.
    pub(crate) fn counts_for_breaker(&self) -> bool {
        matches!(self, Self::Http { code: 500.., .. })
    }

    /// The word for it in ledgers and explanations.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Protocol { .. } => "protocol_error",
            Self::Execution { .. } => "tool_error",
            Self::Http { code: 429, .. } => "queue_full",
            Self::Http { code: 504, .. } => "timeout",
            Self::Http { .. } => "unavailable",
        }
    }
}

impl From<CallError> for CallFailure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Protocol { code, message } => Self::Protocol { code, message },
            CallError::Execution { content, .. } => Self::Execution { content },
            CallError::Http { code, message } => Self::Unanswered { status: code, message },
        }
    }
}
