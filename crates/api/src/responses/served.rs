//! Items of tools that the server calls, while their response is generated: events, and results of calls.

use super::item::Item;
use super::mcp_item::{McpCall, McpListTools, McpStatus};
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
    /// Marks a call that has no result as incomplete: its response has ended.
    pub fn cut(&mut self) {
        if self.status == McpStatus::InProgress {
            self.status = McpStatus::Incomplete;
        }
    }

    /// Ends the call with its result.
    pub fn settle(&mut self, result: Result<String, CallFailure>) {
        match result {
            Ok(output) => (self.output, self.status) = (Some(output), McpStatus::Completed),
            Err(failure) => (self.error, self.status) = (Some(failure), McpStatus::Failed),
        }
    }
}
