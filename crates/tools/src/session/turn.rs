//! The items of one turn of the model.

use throng_api::answer::{Call, Choice};
use throng_api::responses::{
    Author, Content, FunctionCall, Ids, Item, ItemStatus, McpCall, McpStatus, Message, Reasoning, Thought,
};

/// The items of a turn.
#[derive(Debug)]
pub(super) struct TurnItems {
    pub items: Vec<Item>,
    /// Index of the first call.
    pub first_call: usize,
}

/// The items of the turn with this number, from what the model generated in it. `served` gives the label and
/// the name of a server's tool by the name that the model calls.
pub(super) fn items_of(
    choice: Choice,
    turn: u32,
    served: impl Fn(&str) -> Option<(String, String)>,
) -> TurnItems {
    let ids = Ids::new();
    let mut items = Vec::new();
    if !choice.reasoning.is_empty() {
        let content = vec![Thought::ReasoningText { text: choice.reasoning }];
        let id = ids.item_of_turn("rs", 0, turn);
        let (summary, encrypted_content, status) = (Vec::new(), None, None);
        items.push(Item::Reasoning(Reasoning { id, summary, content, encrypted_content, status }));
    }
    if !choice.content.is_empty() {
        let (id, status, role) = (ids.item_of_turn("msg", 1, turn), ItemStatus::Completed, Author::Assistant);
        let content = vec![Content::output(choice.content)];
        items.push(Item::Message(Message { id, status, role, content, phase: None }));
    }
    let first_call = items.len();
    for call in choice.calls {
        let Call { id: call_id, name, arguments } = call;
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
