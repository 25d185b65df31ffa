//! One turn of the model as it comes: its texts and calls, and the items that they become.

use throng_api::answer::Delta;
use throng_api::responses::{
    Author, Content, FunctionCall, Ids, Item, ItemStatus, McpCall, McpStatus, Message, Reasoning, Thought,
};

/// Texts and calls of a turn.
#[derive(Debug, Clone, Default)]
pub(super) struct TurnParts {
    reasoning: String,
    content: String,
    pub calls: Vec<TurnCall>,
}

/// A call of a turn.
#[derive(Debug, Clone)]
pub(super) struct TurnCall {
    id: String,
    pub name: String,
    pub arguments: String,
}

/// The items of a turn.
#[derive(Debug)]
pub(super) struct TurnItems {
    pub items: Vec<Item>,
    /// Place of the first call.
    pub first_call: usize,
}

impl TurnParts {
    pub fn add(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content.push_str(text),
                Delta::Reasoning(text) => self.reasoning.push_str(text),
                Delta::CallBegin { id, name, .. } => {
                    self.calls.push(TurnCall { id: id.clone(), name: name.clone(), arguments: String::new() })
                }
                Delta::CallArguments { call_idx, fragment } => {
                    if let Some(call) = self.calls.get_mut(*call_idx as usize) {
                        call.arguments.push_str(fragment);
                    }
                }
            }
        }
    }

    /// The items of the turn with this number. `served` gives the label and the name of a server's tool by
    /// the name that the model calls.
    pub fn into_items(self, turn: u32, served: impl Fn(&str) -> Option<(String, String)>) -> TurnItems {
        let ids = Ids::new();
        let mut items = Vec::new();
        if !self.reasoning.is_empty() {
            let content = vec![Thought::ReasoningText { text: self.reasoning }];
            let id = ids.item_of_turn("rs", 0, turn);
            let (summary, encrypted_content, status) = (Vec::new(), None, None);
            items.push(Item::Reasoning(Reasoning { id, summary, content, encrypted_content, status }));
        }
        if !self.content.is_empty() {
            let (id, status, role) =
                (ids.item_of_turn("msg", 1, turn), ItemStatus::Completed, Author::Assistant);
            let content = vec![Content::output(self.content)];
            items.push(Item::Message(Message { id, status, role, content, phase: None }));
        }
        let first_call = items.len();
        for call in self.calls {
            let TurnCall { id: call_id, name, arguments } = call;
            let idx = items.len();
            items.push(match served(&name) {
                Some((server_label, name)) => Item::McpCall(McpCall {
                    id: ids.item_of_turn("mcp", idx, turn),
                    server_label,
                    name,
                    arguments,
                    approval_request_id: None,
                    output: None,
                    error: None,
                    status: McpStatus::InProgress,
                }),
                None => Item::FunctionCall(FunctionCall {
                    id: ids.item_of_turn("fc", idx, turn),
                    call_id,
                    name,
                    namespace: None,
                    arguments,
                    status: ItemStatus::Completed,
                }),
            });
        }
        TurnItems { items, first_call }
    }
}
