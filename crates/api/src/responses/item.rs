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
    /// A message of the user, the model or the operator.
    Message(Message),
    /// Reasoning of the model.
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

/// State of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// The item is being written.
    InProgress,
    /// The item is complete.
    Completed,
    /// The item was cut before its end.
    Incomplete,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// A message of the user.
    User,
    /// A message of the model.
    Assistant,
    /// The developer or operator, who gives instructions.
    System,
    /// Instructions, as newer models of OpenAI call them.
    Developer,
}

/// A message of the user, the model or the operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Id of the message.
    pub id: String,
    /// State of the message.
    pub status: ItemStatus,
    /// Author of the message.
    pub role: Author,
    /// Parts of the message.
    pub content: Vec<Content>,
    /// Whether the message is a comment or the answer, if the client says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// Path of a value in the request; empty for a value from the store. It is not part of the value: all origins
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
    /// Text for the model.
    InputText {
        /// Text of the part.
        text: String,
    },
    /// Text of the model.
    OutputText {
        /// Always empty, as no tool of this server produces citations.
        #[serde(default)]
        annotations: [(); 0],
        /// Log-probabilities of the text's tokens, if they were asked for.
        #[serde(default)]
        logprobs: Vec<Logprob>,
        /// Text of the part.
        text: String,
    },
    /// A refusal of the model.
    Refusal {
        /// Text of the refusal.
        refusal: String,
    },
    /// An image for the model.
    InputImage {
        /// URL of the image, in most cases a `data:` URL.
        image_url: String,
        /// Resolution at which the model should read the image.
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
    /// Text of the token.
    pub token: String,
    /// Bytes of the token's text.
    pub bytes: Vec<u8>,
    /// Log-probability of the token.
    pub logprob: f32,
    /// The most likely tokens at this position.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A likely token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Bytes of the token's text.
    pub bytes: Vec<u8>,
    /// Log-probability of the token.
    pub logprob: f32,
}

/// Reasoning of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// Id of the item.
    pub id: String,
    /// Reasoning, if the client asked for a summary; it is not shortened.
    pub summary: Vec<Thought>,
    /// Reasoning, if the client asked for no summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Thought>,
    /// Copy of the reasoning, encoded for clients that keep only this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
    /// State of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// A text of a [`Reasoning`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thought {
    /// A text of `content`.
    ReasoningText {
        /// Text of the reasoning.
        text: String,
    },
    /// A text of `summary`.
    SummaryText {
        /// Text of the summary.
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
    /// Name of the function.
    pub name: String,
    /// The namespace of the function, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Arguments of the call: usually JSON, but not if the model made a mistake.
    pub arguments: String,
    /// State of the call.
    pub status: ItemStatus,
}

/// A call of a tool that takes free text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomToolCall {
    /// The id of the item.
    pub id: String,
    /// Id to which its result refers.
    pub call_id: String,
    /// Name of the tool.
    pub name: String,
    /// The namespace of the tool, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Input of the call.
    pub input: String,
    /// State of the call.
    pub status: ItemStatus,
}

/// Result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallOutput {
    /// The id of the item.
    pub id: String,
    /// Id of the call that it answers.
    pub call_id: String,
    /// Output of the tool.
    pub output: Output,
    /// State of the output.
    pub status: ItemStatus,
}

/// Output of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// The result as one text.
    Text(String),
    /// Parts of text.
    Parts(Vec<Content>),
}

/// A summary in the place of older items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Id of the item.
    pub id: String,
    /// The summary of the compacted items, encoded for the client.
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
    /// Items of the request's input.
    Input,
    /// Items that it answered with.
    Output,
}

const RESPONSE: &str = "resp_";
/// Mark before the number of a turn, no hexadecimal digit.
const TURN: char = 't';
/// Number of characters of an id, after its first underscore, that belong to the response.
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
    /// Id of the item.
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

    /// Replaces the item's id.
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

    /// Text of the part; empty for an image.
    pub fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
            Self::InputImage { .. } => "",
        }
    }
}

impl Thought {
    /// Text of the reasoning.
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

/// A text in the encoding of `encrypted_content`, which clients keep unchanged. The text is the client's own,
/// not a secret.
pub(super) fn encode_opaque(text: &str) -> String {
    STANDARD.encode(text)
}

/// The text of an `encrypted_content` that this server encoded.
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
