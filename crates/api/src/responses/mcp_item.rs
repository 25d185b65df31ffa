//! Items of tools that the server calls: lists of tools, calls, and approvals by the client.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::CallFailure;

/// The tools of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpListTools {
    /// Id of the item.
    pub id: String,
    /// Label of the server.
    pub server_label: String,
    /// The tools that the request allows.
    pub tools: Vec<ToolDefinition>,
    /// Reason why they could not be listed.
    #[serde(default)]
    pub error: Option<String>,
}

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool for the model.
    #[serde(default)]
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// Hints of the server about the tool, such as `readOnlyHint`.
    #[serde(default)]
    pub annotations: Option<Value>,
}

/// A call of a server's tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpCall {
    /// Id of the item.
    pub id: String,
    /// Label of the server.
    pub server_label: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as the model wrote them: usually JSON.
    pub arguments: String,
    /// Id of the approval request, if the call needed one.
    #[serde(default)]
    pub approval_request_id: Option<String>,
    /// Result of the call.
    #[serde(default)]
    pub output: Option<String>,
    /// Failure of the call.
    #[serde(default)]
    pub error: Option<CallFailure>,
    /// Status of the call.
    pub status: McpStatus,
}

/// Status of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpStatus {
    /// The item is being written or the call runs.
    InProgress,
    /// The item is complete and has a result.
    Completed,
    /// The item was cut before its end.
    Incomplete,
    /// The call is running.
    Calling,
    /// The call ended without a result.
    Failed,
}

/// A call that waits for the client's approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpApprovalRequest {
    /// Id of the item, to which the decision refers.
    pub id: String,
    /// Label of the server.
    pub server_label: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as the model wrote them.
    pub arguments: String,
}

/// The client's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpApprovalResponse {
    /// Id of the item.
    pub id: String,
    /// Id of the approval request.
    pub approval_request_id: String,
    /// Whether the call may run.
    pub approve: bool,
    /// Reason that the client gave.
    #[serde(default)]
    pub reason: Option<String>,
}

impl ToolDefinition {
    /// Whether the server declares that the tool changes nothing.
    pub fn is_read_only(&self) -> bool {
        self.annotations.as_ref().is_some_and(|hints| hints["readOnlyHint"] == Value::Bool(true))
    }

    /// Bytes of the name, the description and the schema.
    pub fn n_bytes(&self) -> usize {
        let description = self.description.as_ref().map_or(0, String::len);
        self.name.len() + description + self.input_schema.to_string().len()
    }
}

impl McpCall {
    /// The result in the form in which the model gets it.
    pub fn told(&self) -> String {
        match (&self.output, &self.error) {
            (Some(output), _) => output.clone(),
            (None, Some(error)) => format!("The call failed: {error}"),
            (None, None) => "The call did not end.".to_owned(),
        }
    }
}
