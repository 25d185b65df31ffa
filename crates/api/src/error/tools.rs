//! Faults of tools that the gateway calls. Does not know servers.

use http::StatusCode;

use super::{ApiError, echo};

const UNAVAILABLE: &str = "tool_server_unavailable";

impl ApiError {
    /// A server of tools does not answer as it should.
    pub fn tool_server_unavailable(param: impl Into<String>, reason: &str) -> Self {
        let message = format!("The tools cannot be listed: {reason}.");
        Self::client(StatusCode::FAILED_DEPENDENCY, UNAVAILABLE, message).with_param(param)
    }

    /// Whether a server of tools does not answer as it should.
    pub fn is_tool_server_unavailable(&self) -> bool {
        self.code() == UNAVAILABLE
    }

    /// The tools of a server are not those that the operator has approved.
    pub fn tools_not_approved(param: impl Into<String>, reason: &str) -> Self {
        let message = format!("The tools cannot be used: {reason}.");
        Self::client(StatusCode::FORBIDDEN, "tools_not_approved", message).with_param(param)
    }

    /// The process of the response has died after it had called tools, which are not called twice.
    pub fn tools_called_already() -> Self {
        let message = "The process that answered has ended. The response used tools of the gateway and is not \
                       repeated, so that no tool is called twice.";
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "tools_called_already", message)
    }

    /// The client has answered an approval request that does not exist.
    pub fn approval_request_not_found(id: &str) -> Self {
        let reason = format!("There is no approval request '{}' in the conversation.", echo(id));
        Self::invalid_value("input", reason)
    }

    /// The client has approved a call of a tool that its request does not offer.
    pub fn approved_tool_not_offered(server: &str, tool: &str) -> Self {
        let (server, tool) = (echo(server), echo(tool));
        let reason =
            format!("The tool '{tool}' of the server '{server}' was approved, but is not among 'tools'.");
        Self::invalid_value("tools", reason)
    }
}
