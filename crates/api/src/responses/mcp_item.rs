//! Items of tools that the server calls: lists of tools, calls, and approvals by the client.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tools of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpListTools {
    /// Its id.
    pub id: String,
    /// The label of the server.
    pub server_label: String,
    /// The tools.
    pub tools: Vec<McpListedTool>,
    /// Why they could not be listed.
    #[serde(default)]
    pub error: Option<String>,
}

/// A tool of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpListedTool {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// Hints of the server about it.
    #[serde(default)]
    pub annotations: Option<Value>,
}

/// A call of a server's tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpCall {
    /// Its id.
    pub id: String,
    /// The label of the server.
    pub server_label: String,
    /// The tool.
    pub name: String,
    /// Its arguments: JSON, if the model did well.
    pub arguments: String,
    /// The request by which the client approved it, if one was needed.
    #[serde(default)]
    pub approval_request_id: Option<String>,
    /// The result.
    #[serde(default)]
    pub output: Option<String>,
    /// Why there is none.
    #[serde(default)]
    pub error: Option<McpError>,
    /// How far it is.
    pub status: McpStatus,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpStatus {
    /// Being written or run.
    InProgress,
    /// Ended with a result.
    Completed,
    /// Cut before its end.
    Incomplete,
    /// Being run.
    Calling,
    /// Ended without a result.
    Failed,
}

/// The failure of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpError {
    /// The server refused the call as its protocol has it.
    McpProtocolError {
        /// JSON-RPC's code.
        code: i64,
        /// The reason.
        message: String,
    },
    /// The tool ran and failed.
    McpToolExecutionError {
        /// Its output.
        content: Value,
    },
    /// The call has no answer.
    HttpError {
        /// The status that fits.
        code: i64,
        /// The reason.
        message: String,
    },
}

/// A call that waits for the client's approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpApprovalRequest {
    /// Its id.
    pub id: String,
    /// The label of the server.
    pub server_label: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: String,
}

/// The client's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpApprovalResponse {
    /// Its id.
    pub id: String,
    /// The request.
    pub approval_request_id: String,
    /// Whether the call may run.
    pub approve: bool,
    /// The client's words.
    #[serde(default)]
    pub reason: Option<String>,
}

impl McpCall {
    /// What the model is told of it.
    pub fn told(&self) -> String {
        match (&self.output, &self.error) {
            (Some(output), _) => output.clone(),
            (None, Some(error)) => format!("The call failed: {}", error.text()),
            (None, None) => "The call did not end.".to_owned(),
        }
    }
}

impl McpError {
    /// Its text.
    pub fn text(&self) -> String {
        match self {
            Self::McpProtocolError { message, .. } | Self::HttpError { message, .. } => message.clone(),
            Self::McpToolExecutionError { content } => text_of(content),
        }
    }
}

/// The texts of a tool's output.
fn text_of(content: &Value) -> String {
    let of_block = |block: &Value| block["text"].as_str().map_or_else(|| block.to_string(), str::to_owned);
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(of_block).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}
