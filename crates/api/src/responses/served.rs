//! Items of tools that the server calls, while they come about: their events, and what their calls become.

use super::item::Item;
use super::mcp_item::{McpCall, McpError, McpListTools, McpStatus};
use super::response::{Event, Place};
use crate::answer::CallFailure;

/// An item that a response begins with, as it was when it began.
pub(super) fn begun(item: &Item) -> Item {
    match item {
        Item::McpListTools(list) => {
            Item::McpListTools(McpListTools { tools: Vec::new(), error: None, ..list.clone() })
        }
        Item::McpCall(call) => {
            let status = McpStatus::InProgress;
            Item::McpCall(McpCall { output: None, error: None, status, ..call.clone() })
        }
        other => other.clone(),
    }
}

/// The events of an item that a response begins with, between its beginning and its end.
pub(super) fn events_of<'a>(item: &'a Item, place: Place<'a>) -> Vec<Event<'a>> {
    match item {
        Item::McpListTools(list) => vec![
            Event::McpListInProgress { place },
            match list.error {
                None => Event::McpListCompleted { place },
                Some(_) => Event::McpListFailed { place },
            },
        ],
        Item::McpCall(call) => vec![
            Event::McpCallInProgress { place },
            Event::McpArgumentsDone { place, arguments: &call.arguments },
            end_of(call, place),
        ],
        _ => Vec::new(),
    }
}

/// The event of the end of a call.
pub(super) fn end_of<'a>(call: &McpCall, place: Place<'a>) -> Event<'a> {
    match call.status {
        McpStatus::Completed => Event::McpCallCompleted { place },
        _ => Event::McpCallFailed { place },
    }
}

impl McpCall {
    /// Gives it what came of it.
    pub fn settle(&mut self, result: Result<String, CallFailure>) {
        match result {
            Ok(output) => (self.output, self.status) = (Some(output), McpStatus::Completed),
            Err(failure) => (self.error, self.status) = (Some(McpError::from(failure)), McpStatus::Failed),
        }
    }
}

impl From<CallFailure> for McpError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Protocol { code, message } => Self::McpProtocolError { code, message },
            CallFailure::Execution { content } => Self::McpToolExecutionError { content },
            CallFailure::Unanswered { status, message } => {
                Self::HttpError { code: i64::from(status), message }
            }
        }
    }
}
