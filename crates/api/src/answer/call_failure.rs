//! The failure of a call that the server ran, in the one form in which models, clients and stores get it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The failure of a call that the server ran. As JSON it is the `error` of OpenAI's `mcp_call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum CallFailure {
    /// The tool's server refused the call in the terms of its protocol.
    #[serde(rename = "mcp_protocol_error")]
    Protocol {
        /// JSON-RPC error code.
        code: i64,
        /// Error message of the server.
        message: String,
    },
    /// The tool ran and failed.
    #[serde(rename = "mcp_tool_execution_error")]
    Execution {
        /// Output of the tool.
        content: Value,
    },
    /// The call has no answer.
    #[serde(rename = "http_error")]
    Unanswered {
        /// Status of the HTTP endpoint, or the one that describes the failure.
        #[serde(rename = "code")]
        status: u16,
        /// Reason for the failure.
        message: String,
    },
}

impl CallFailure {
    /// Creates the failure of a call without an answer.
    pub fn unanswered(status: u16, message: impl Into<String>) -> Self {
        Self::Unanswered { status, message: message.into() }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol { message, .. } | Self::Unanswered { message, .. } => f.write_str(message),
            Self::Execution { content } => f.write_str(&text_of(content)),
        }
    }
}

impl std::error::Error for CallFailure {}

/// The texts of a tool's output, one a line; a block without text is its JSON.
fn text_of(content: &Value) -> String {
    let of_block = |block: &Value| block["text"].as_str().map_or_else(|| block.to_string(), str::to_owned);
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(of_block).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_has_the_form_of_openai_and_a_text() {
        for (json, text) in [
            (json!({"type": "mcp_protocol_error", "code": -32602, "message": "no tool"}), "no tool"),
            (json!({"type": "http_error", "code": 504, "message": "late"}), "late"),
            (
                json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "a"}, {"b": 1}]}),
                "a\n{\"b\":1}",
            ),
        ] {
            let failure: CallFailure = serde_json::from_value(json.clone()).expect("a failure");
            assert_eq!(failure.to_string(), text);
            assert_eq!(serde_json::to_value(&failure).expect("JSON"), json);
        }
    }
}
