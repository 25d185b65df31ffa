//! Parameters about kept objects, read before the rest of a request. Does not know stores.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use throng_text::TokenTrail;

use super::history::History;
use super::item::{Ids, Item};
use super::mcp_tool::ServerTool;
use super::slot::ResponseSlot;
use super::socket::Framing;
use crate::error::ApiError;

/// Parameters of a request about kept responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateParameters {
    /// Whether the response is to be kept, if the request says so.
    pub store: Option<bool>,
    /// Whether it is answered without its client.
    pub is_background: bool,
    /// Id of the response that this one continues.
    pub previous: Option<String>,
    /// The conversation of the response.
    pub conversation: Option<String>,
    /// The ids of kept items in its input.
    pub references: Vec<String>,
    /// Whether it names servers whose tools the gateway is to call.
    pub names_servers: bool,
}

#[derive(Deserialize)]
struct Head<'a> {
    store: Option<bool>,
    background: Option<bool>,
    previous_response_id: Option<String>,
    conversation: Option<Named>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    tools: Option<Vec<ToolHead>>,
}

#[derive(Deserialize)]
struct ToolHead {
    r#type: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Id(String),
    Object { id: String },
}

#[derive(Deserialize)]
struct Entry {
    r#type: Option<String>,
    id: Option<String>,
    role: Option<serde::de::IgnoredAny>,
}

impl StateParameters {
    /// Reads it from a body. `None` for a body that is refused when it is read as a whole.
    pub fn of(body: &[u8]) -> Option<Self> {
        let head: Head<'_> = serde_json::from_slice(body).ok()?;
        let input = head.input.map_or("", RawValue::get);
        let entries: Vec<Entry> =
            if input.starts_with('[') { serde_json::from_str(input).ok()? } else { Vec::new() };
        let is_reference = |entry: &Entry| match entry.r#type.as_deref() {
            Some(kind) => kind == "item_reference",
            None => entry.role.is_none(),
        };
        Some(Self {
            store: head.store,
            is_background: head.background == Some(true),
            previous: head.previous_response_id,
            conversation: head.conversation.map(|named| match named {
                Named::Id(id) | Named::Object { id } => id,
            }),
            names_servers: head.tools.iter().flatten().any(|tool| tool.r#type.as_deref() == Some("mcp")),
            references: entries.into_iter().filter(is_reference).filter_map(|entry| entry.id).collect(),
        })
    }

    /// Whether the request continues a kept response or conversation.
    pub fn goes_on(&self) -> bool {
        self.previous.is_some() || self.conversation.is_some() || !self.references.is_empty()
    }

    /// Refuses parameters that need a store.
    ///
    /// # Errors
    /// 4xx that names the parameter.
    pub fn check_without_store(&self) -> Result<(), ApiError> {
        let asked = [("store", self.store == Some(true)), ("background", self.is_background)];
        if let Some((param, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(ApiError::needs_store(param));
        }
        match (&self.previous, &self.conversation, self.references.first()) {
            (Some(id), ..) => Err(ApiError::previous_response_not_found(id)),
            (_, Some(id), _) => Err(ApiError::conversation_not_found(id)),
            (.., Some(id)) => Err(ApiError::item_not_found(id, "input")),
            _ => Ok(()),
        }
    }
}

/// The kept part of a request's conversation, and how its response is kept.
#[derive(Debug, Clone, Default)]
pub struct TurnContext {
    /// The items before its input.
    pub history: History,
    /// The items that its input refers to.
    pub referenced: Vec<Item>,
    /// Tokens of the turns before its input, if those of its own turn are kept.
    pub trail: Option<Arc<TokenTrail>>,
    /// The ids of its response, where they are not new.
    pub ids: Option<Ids>,
    /// Whether the response is kept.
    pub is_storing: bool,
    /// Slot in which the writer leaves the response.
    pub slot: ResponseSlot,
    /// Ids of calls that an earlier attempt has sent.
    pub call_ids: Vec<String>,
    /// The key of the random numbers, where the request has none.
    pub seed: Option<i64>,
    /// Framing of the response's events.
    pub framing: Framing,
    /// Whether the input is only prepared, and no generated output is shown.
    pub is_warmup: bool,
    /// The server's own part in the response, where it calls tools.
    pub served: Option<ServedTools>,
}

/// Tools that the server calls for a response, and their results so far.
#[derive(Debug, Clone, Default)]
pub struct ServedTools {
    /// The tools that the model is offered.
    pub tools: Vec<ServerTool>,
    /// Items that the response begins with: lists of tools, and calls that the client has approved.
    pub first: Vec<Item>,
    /// Items of the model's turns so far, except those that the response begins with.
    pub turns: Vec<Item>,
    /// Number of the model's turn.
    pub turn: u32,
    /// Number of output tokens of the turns before.
    pub n_output_tokens: u64,
    /// Whether no more calls are allowed.
    pub is_exhausted: bool,
}

impl TurnContext {
    pub(super) fn find(&self, id: &str) -> Result<&Item, ApiError> {
        let found = self.history.iter().chain(&self.referenced).find(|item| item.id() == id);
        found.ok_or_else(|| ApiError::item_not_found(id, "input"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_before_the_rest_is_read() {
        let parameters = StateParameters::of(
            br#"{"model":"m","store":true,"conversation":{"id":"conv_1"},
                "input":[{"type":"item_reference","id":"a"},{"id":"b"},{"role":"user","content":"x"}]}"#,
        );
        let parameters = parameters.expect("a parameters");
        assert_eq!((parameters.store, parameters.conversation.as_deref()), (Some(true), Some("conv_1")));
        assert_eq!(parameters.references, ["a", "b"]);
        assert_eq!(StateParameters::of(br#"{"input":"a"}"#), Some(StateParameters::default()));
        assert_eq!(StateParameters::of(br#"{"store":1}"#), None);
    }
}
