//! Items while they are written: texts that grow.

use serde_json::Value;

use super::item::{
    Author, Content, CustomToolCall, FunctionCall, Item, ItemStatus, Logprob, Message, Reasoning, Thought,
    encode_opaque,
};
use super::mcp_item::{McpApprovalRequest, McpCall, McpStatus};
use super::mcp_tool::ServerTool;
use super::view::ResponseView;

/// An item that is being written.
#[derive(Debug)]
pub(super) enum OpenItem {
    Message {
        id: String,
        text: String,
        logprobs: Vec<Logprob>,
    },
    Reasoning {
        id: String,
        text: String,
    },
    Call {
        call: FunctionCall,
        is_custom: bool,
    },
    /// A call that the server runs, with its number in its turn.
    Served {
        call: McpCall,
        call_idx: u32,
    },
    /// A call that the client has to approve.
    Approval(McpApprovalRequest),
}

impl OpenItem {
    pub fn message() -> Self {
        Self::Message { id: String::new(), text: String::new(), logprobs: Vec::new() }
    }

    pub fn reasoning() -> Self {
        Self::Reasoning { id: String::new(), text: String::new() }
    }

    /// The beginning of a call of a server's tool.
    pub fn served(tool: &ServerTool, call_idx: u32) -> Self {
        let (server_label, name) = (tool.server_label.clone(), tool.name.clone());
        let (id, arguments) = (String::new(), String::new());
        if tool.needs_approval {
            return Self::Approval(McpApprovalRequest { id, server_label, name, arguments });
        }
        let status = McpStatus::InProgress;
        let (approval_request_id, output, error) = (None, None, None);
        let call = McpCall { id, server_label, name, arguments, approval_request_id, output, error, status };
        Self::Served { call, call_idx }
    }

    /// The arguments of a call.
    pub fn arguments(&mut self) -> Option<&mut String> {
        match self {
            Self::Message { .. } | Self::Reasoning { .. } => None,
            Self::Call { call, .. } => Some(&mut call.arguments),
            Self::Served { call, .. } => Some(&mut call.arguments),
            Self::Approval(call) => Some(&mut call.arguments),
        }
    }

    pub fn id(&self) -> &str {
        match self {
            Self::Message { id, .. } | Self::Reasoning { id, .. } => id,
            Self::Call { call, .. } => &call.id,
            Self::Served { call, .. } => &call.id,
            Self::Approval(call) => &call.id,
        }
    }

    pub fn set_id(&mut self, new: String) {
        match self {
            Self::Message { id, .. } | Self::Reasoning { id, .. } => *id = new,
            Self::Call { call, .. } => call.id = new,
            Self::Served { call, .. } => call.id = new,
            Self::Approval(call) => call.id = new,
        }
    }

    /// Prefix of the item's id.
    pub fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { is_custom: true, .. } => "ctc",
            Self::Call { .. } => "fc",
            Self::Served { .. } => "mcp",
            Self::Approval(_) => "mcpr",
        }
    }

    /// The item as it begins: without any text.
    pub fn begun(&self) -> Item {
        let (id, status) = (self.id().to_owned(), ItemStatus::InProgress);
        match self {
            Self::Message { .. } => Item::Message(message(id, status, Vec::new())),
            Self::Reasoning { .. } => Item::Reasoning(Reasoning {
                id,
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: None,
                status: Some(status),
            }),
            Self::Call { call, is_custom } => {
                called(FunctionCall { arguments: String::new(), status, ..call.clone() }, *is_custom)
            }
            Self::Served { call, .. } => Item::McpCall(call.clone()),
            Self::Approval(call) => Item::McpApprovalRequest(call.clone()),
        }
    }

    /// The item once it has ended.
    pub fn done(self, status: ItemStatus, view: &ResponseView) -> Item {
        match self {
            Self::Message { id, text, logprobs } => {
                let part = Content::OutputText { annotations: [], logprobs, text };
                Item::Message(message(id, status, vec![part]))
            }
            Self::Reasoning { id, text } => {
                let encrypted_content = view.shows_encrypted.then(|| encode_opaque(&text));
                let (summary, content) = match view.shows_summary {
                    true => (vec![Thought::SummaryText { text }], Vec::new()),
                    false => (Vec::new(), vec![Thought::ReasoningText { text }]),
                };
                Item::Reasoning(Reasoning { id, summary, content, encrypted_content, status: Some(status) })
            }
            Self::Call { call, is_custom } => called(FunctionCall { status, ..call }, is_custom),
            Self::Served { call, .. } => {
                let status = match status {
                    ItemStatus::Incomplete => McpStatus::Incomplete,
                    _ => McpStatus::InProgress,
                };
                Item::McpCall(McpCall { status, ..call })
            }
            Self::Approval(call) => Item::McpApprovalRequest(call),
        }
    }
}

fn message(id: String, status: ItemStatus, content: Vec<Content>) -> Message {
    Message { id, status, role: Author::Assistant, content, phase: None }
}

fn called(call: FunctionCall, is_custom: bool) -> Item {
    if !is_custom {
        return Item::FunctionCall(call);
    }
    let FunctionCall { id, call_id, name, namespace, arguments, status } = call;
    Item::CustomToolCall(CustomToolCall { id, call_id, name, namespace, input: free_text(arguments), status })
}

/// The input of a tool that takes free text, which the model wrote as the only argument of a function.
fn free_text(arguments: String) -> String {
    match serde_json::from_str::<Value>(&arguments) {
        Ok(Value::Object(mut members)) => match members.remove("input") {
            Some(Value::String(text)) => text,
            _ => arguments,
        },
        _ => arguments,
    }
}
