//! Items: the parts of conversations in OpenAI's Responses, as requests send them, answers give them and
//! stores keep them. Does not know how they are read from requests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::mcp_item::{McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools};

/// An item of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// Something that was said.
    Message(Message),
    /// The model's thoughts.
    Reasoning(Reasoning),
    /// A call of a function.
    FunctionCall(FunctionCall),
    /// The result of a function.
    FunctionCallOutput(CallOutput),
    /// A call of a tool that takes free text.
    CustomToolCall(CustomToolCall),
    /// The result of a tool that takes free text.
    CustomToolCallOutput(CallOutput),
    /// A summary in the place of older items.
    Compaction(Compaction),
    /// The tools of a server.
    McpListTools(McpListTools),
    /// A call of a server's tool.
    McpCall(McpCall),
    /// A call that waits for the client's approval.
    McpApprovalRequest(McpApprovalRequest),
    /// The client's decision about a call.
    McpApprovalResponse(McpApprovalResponse),
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// Being written.
    InProgress,
    /// Whole.
    Completed,
    /// Cut before its end.
    Incomplete,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The person.
    User,
    /// The model.
    Assistant,
    /// Instructions.
    System,
    /// Instructions, as newer models of OpenAI call them.
    Developer,
}

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Its id.
    pub id: String,
    /// How far it is.
    pub status: ItemStatus,
    /// Author of the message.
    pub role: Author,
    /// Its parts.
    pub content: Vec<Content>,
    /// Whether it is a comment or the answer, where the client says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// Path of a value in the request that has it; empty for one that was kept. It is no part of the value: all
/// are equal.
#[derive(Debug, Clone, Default)]
pub struct Origin(pub String);

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A part of a message or of a tool's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// Text that the model is given.
    InputText {
        /// The text.
        text: String,
    },
    /// Text of the model.
    OutputText {
        /// Always empty: no tool of this server cites.
        #[serde(default)]
        annotations: [(); 0],
        /// Log-probabilities of its tokens, if they were asked for.
        #[serde(default)]
        logprobs: Vec<Logprob>,
        /// The text.
        text: String,
    },
    /// A refusal of the model.
    Refusal {
        /// Its text.
        refusal: String,
    },
    /// An image that the model is given.
    InputImage {
        /// Its URL, in most cases a `data:` URL.
        image_url: String,
        /// How closely the model is to look at it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// Path in the request, for errors about the file.
        #[serde(skip)]
        origin: Origin,
    },
}

/// A token and the most likely ones in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprob {
    /// Its text.
    pub token: String,
    /// The bytes of its text.
    pub bytes: Vec<u8>,
    /// Its log-probability.
    pub logprob: f32,
    /// The most likely tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A likely token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// The bytes of its text.
    pub bytes: Vec<u8>,
    /// Its log-probability.
    pub logprob: f32,
}

/// The model's thoughts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// Its id.
    pub id: String,
    /// The thoughts where the client asked for a summary: nothing shortens them here.
    pub summary: Vec<Thought>,
    /// The thoughts otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Thought>,
    /// The thoughts once more, for clients that keep nothing else of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// A text of a [`Reasoning`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thought {
    /// A text of `content`.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// A text of `summary`.
    SummaryText {
        /// The text.
        text: String,
    },
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The id of the item.
    pub id: String,
    /// Id to which its result refers.
    pub call_id: String,
    /// The function.
    pub name: String,
    /// The namespace of the function, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its arguments: JSON, if the model did well.
    pub arguments: String,
    /// How far it is.
    pub status: ItemStatus,
}

/// A call of a tool that takes free text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomToolCall {
    /// The id of the item.
    pub id: String,
    /// Id to which its result refers.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// The namespace of the tool, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its input.
    pub input: String,
    /// How far it is.
    pub status: ItemStatus,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallOutput {
    /// The id of the item.
    pub id: String,
    /// Id of the call that it answers.
    pub call_id: String,
    /// Output of the tool.
    pub output: Output,
    /// How far it is.
    pub status: ItemStatus,
}

/// Output of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// A text.
    Text(String),
    /// Parts of text.
    Parts(Vec<Content>),
}

/// A summary in the place of older items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Its id.
    pub id: String,
    /// The summary.
    pub encrypted_content: String,
}

/// Ids of a response and of its items, which name their response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    response: String,
}

/// List of a response that has an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Items that it was given.
    Input,
    /// Items that it answered with.
    Output,
}

const RESPONSE: &str = "resp_";
/// Mark before the number of a turn, no hexadecimal digit.
const TURN: char = 't';
/// Characters of an id behind its first underscore that are the response's own.
const N_OWN: usize = 32;

impl Ids {
    /// The ids of a new response.
    pub fn new() -> Self {
        Self { response: format!("{RESPONSE}{}", uuid::Uuid::new_v4().simple()) }
    }

    /// The ids of the response `id`.
    pub fn of(id: &str) -> Self {
        Self { response: id.to_owned() }
    }

    /// The id of the response.
    pub fn response(&self) -> &str {
        &self.response
    }

    /// The id of the item at `idx`, which begins with `prefix`.
    pub fn item(&self, prefix: &str, side: Side, idx: usize) -> String {
        let own = self.response.strip_prefix(RESPONSE).unwrap_or(&self.response);
        let side = if side == Side::Input { 'a' } else { 'b' };
        format!("{prefix}_{own}{side}{idx:04x}")
    }

    /// The id of the output item at `idx` that this turn of the model made. A response has several turns
    /// where the server calls tools.
    pub fn item_of_turn(&self, prefix: &str, idx: usize, turn: u32) -> String {
        let id = self.item(prefix, Side::Output, idx);
        if turn == 0 { id } else { format!("{id}{TURN}{turn}") }
    }

    /// The turn of its response that made the item with this id.
    pub fn turn_of(item_id: &str) -> u32 {
        let own = item_id.split_once('_').map_or("", |(_, own)| own);
        own.rsplit_once(TURN).and_then(|(_, turn)| turn.parse().ok()).unwrap_or(0)
    }

    /// The id of the response whose item has this id.
    pub fn response_of(item_id: &str) -> Option<String> {
        let own = item_id.split_once('_')?.1.get(..N_OWN)?;
        own.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("{RESPONSE}{own}"))
    }
}

impl Default for Ids {
    fn default() -> Self {
        Self::new()
    }
}

impl Item {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Message(item) => &item.id,
            Self::Reasoning(item) => &item.id,
            Self::FunctionCall(item) => &item.id,
            Self::CustomToolCall(item) => &item.id,
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => &item.id,
            Self::Compaction(item) => &item.id,
            Self::McpListTools(item) => &item.id,
            Self::McpCall(item) => &item.id,
            Self::McpApprovalRequest(item) => &item.id,
            Self::McpApprovalResponse(item) => &item.id,
        }
    }

    /// Gives it another id.
    pub fn set_id(&mut self, id: String) {
        match self {
            Self::Message(item) => item.id = id,
            Self::Reasoning(item) => item.id = id,
            Self::FunctionCall(item) => item.id = id,
            Self::CustomToolCall(item) => item.id = id,
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => item.id = id,
            Self::Compaction(item) => item.id = id,
            Self::McpListTools(item) => item.id = id,
            Self::McpCall(item) => item.id = id,
            Self::McpApprovalRequest(item) => item.id = id,
            Self::McpApprovalResponse(item) => item.id = id,
        }
    }

    /// Prefix of the ids of its kind.
    pub fn prefix(&self) -> &'static str {
        match self {
            Self::Message(_) => "msg",
            Self::Reasoning(_) => "rs",
            Self::FunctionCall(_) => "fc",
            Self::FunctionCallOutput(_) => "fco",
            Self::CustomToolCall(_) => "ctc",
            Self::CustomToolCallOutput(_) => "ctco",
            Self::Compaction(_) => "cmp",
            Self::McpListTools(_) => "mcpl",
            Self::McpCall(_) => "mcp",
            Self::McpApprovalRequest(_) => "mcpr",
            Self::McpApprovalResponse(_) => "mcpar",
        }
    }
}

impl Content {
    /// Text of the model without log-probabilities.
    pub fn output(text: String) -> Self {
        Self::OutputText { annotations: [], logprobs: Vec::new(), text }
    }

    /// Its text, empty for an image.
    pub fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
            Self::InputImage { .. } => "",
        }
    }
}

impl Thought {
    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            Self::ReasoningText { text } | Self::SummaryText { text } => text,
        }
    }
}

impl Reasoning {
    /// The thoughts: of `content`, else as the client kept them, else of `summary`.
    pub fn text(&self) -> String {
        let joined = |thoughts: &[Thought]| thoughts.iter().map(Thought::text).collect::<Vec<_>>().join("\n");
        if !self.content.is_empty() {
            return joined(&self.content);
        }
        let opaque = self.encrypted_content.as_deref().and_then(decode_opaque);
        opaque.unwrap_or_else(|| joined(&self.summary))
    }
}

/// A text as `encrypted_content` carries it: encoded, so that clients take it as it is. It is theirs, and no
/// secret to them.
pub(super) fn encode_opaque(text: &str) -> String {
    STANDARD.encode(text)
}

/// The text of an `encrypted_content` that was made here.
pub(super) fn decode_opaque(opaque: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(opaque).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_names_its_response() {
        let ids = Ids::new();
        let id = ids.item("msg", Side::Output, 3);
        assert!(id.starts_with("msg_") && id.ends_with("b0003"), "{id}");
        assert_eq!(Ids::response_of(&id).as_deref(), Some(ids.response()));
        assert_eq!(Ids::response_of("msg_1"), None);
        assert_eq!(Ids::turn_of(&id), 0);
        let later = ids.item_of_turn("mcp", 4, 2);
        assert_eq!((Ids::turn_of(&later), Ids::response_of(&later).as_deref()), (2, Some(ids.response())));
    }

    #[test]
    fn items_are_kept_as_they_are() {
        let value = json!([
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x", "status": "completed"},
        ]);
        let items: Vec<Item> = serde_json::from_value(value.clone()).expect("items");
        assert_eq!(serde_json::to_value(&items).expect("JSON"), value);
    }
}
