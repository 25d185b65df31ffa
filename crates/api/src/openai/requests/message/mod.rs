//! The messages of a conversation, read and checked, and as the tree a chat template walks. Does not know
//! templates and tools.

mod content;
mod image;
mod reasoning_part;
mod tool_calls;

use serde_json::{Map, Value};

use content::{Content, read_content};
pub(super) use tool_calls::MAX_NAME_BYTES;
pub use tool_calls::ToolCall;
use tool_calls::read_tool_calls;

use crate::error::ApiError;
use crate::json::{Node, TreeBudget};

/// Most parts of one message's content.
const MAX_PARTS: usize = 10_000;

/// Most messages of a conversation.
pub const MAX_MESSAGES: usize = 10_000;

/// Keys of a message. Those from `annotations` on mean nothing here: other servers' answers have them, and
/// clients send them back. The last six would change the answer: the first two of them leave the last message
/// open, as DeepSeek's, Mistral's and Moonshot's servers call it; the others hold what is no text.
const KEYS: &[&str] = &[
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    "refusal",
    "function_call",
    "audio",
    "annotations",
    "cache_control",
    "id",
    "parsed",
    "provider_specific_fields",
    "reasoning_details",
    "thinking_blocks",
    "prefix",
    "partial",
    "images",
    "videos",
    "files",
    "attachments",
];
/// Number of those that strict servers know.
const N_STRICT_KEYS: usize = 17;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, as newer OpenAI models call them.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// The result of a function call (the older form).
    Function,
}

impl Role {
    const ALL: [Self; 6] =
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool, Self::Function];
    const NAMES: [&'static str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// Text; text parts are joined by line breaks. `None` only for answers without any.
    pub content: Option<String>,
    /// The name of the speaker or function.
    pub name: Option<String>,
    /// The tools that the model called.
    pub tool_calls: Vec<ToolCall>,
    /// Which call this answers.
    pub tool_call_id: Option<String>,
    /// What the model thought before it spoke.
    pub reasoning: Option<String>,
}

/// The messages of a conversation.
#[derive(Debug)]
pub struct Messages {
    /// At least one.
    pub messages: Vec<Message>,
    /// The parameter that leaves the last one open, if it has one.
    pub open: Option<String>,
}

/// Reads `messages`; what they are as trees is taken from `budget`.
///
/// # Errors
/// A 400 that names the path.
pub fn read_messages(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Messages, ApiError> {
    let mut messages: Vec<Message> = Vec::new();
    let (mut open, mut n_open) = (None, 0);
    node.elements(MAX_MESSAGES, |_, element| {
        let (message, mark) = read_message(&element, budget)?;
        messages.push(message);
        n_open += usize::from(mark.is_some());
        open = mark;
        Ok(())
    })?;
    let last = messages.last().ok_or_else(|| ApiError::empty_array(node.path()))?;
    if let Some(mark) = open.as_ref().filter(|_| last.role != Role::Assistant) {
        let reason = "Only a last message of the assistant can be continued.";
        return Err(ApiError::invalid_value(mark.clone(), reason));
    }
    if n_open > usize::from(open.is_some()) {
        // Messages that were continued once and are history now.
        node.ignore_as("messages[].prefix");
    }
    check_replies(&messages, node)?;
    Ok(Messages { messages, open })
}

/// The members of a message as they come.
#[derive(Default)]
struct Parts {
    role: Option<Role>,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Vec<ToolCall>,
    tool_call_id: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
}

/// Reads a message, and which of its parameters leaves it open.
fn read_message(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<(Message, Option<String>), ApiError> {
    let mut parts = Parts::default();
    let mut open = None;
    budget.take(1, node)?;
    let keys = if node.is_strict() { &KEYS[..N_STRICT_KEYS] } else { KEYS };
    node.known_members(keys, |key, value| {
        if key == "role" {
            parts.role = Some(Role::ALL[value.one_of(&Role::NAMES)?]);
        } else if value.is_null() {
            return Ok(());
        }
        budget.take(1, &value)?;
        let label = || value.string(MAX_NAME_BYTES).map(|text| Some(text.into_owned()));
        let text = || value.string(usize::MAX).map(|text| Some(text.into_owned()));
        match key {
            "role" => {}
            "content" => parts.content = Some(read_content(&value)?),
            "name" => parts.name = label()?,
            "tool_calls" => parts.tool_calls = read_tool_calls(&value, budget)?,
            "tool_call_id" => parts.tool_call_id = label()?,
            "refusal" => parts.refusal = text()?,
            "reasoning" | "reasoning_content" => {
                let text = text()?;
                // Servers disagree on the name, so that clients repeat both: the same text twice is no fault.
                if parts.reasoning.is_some() && parts.reasoning != text {
                    return Err(ApiError::duplicate_key(value.path()));
                }
                parts.reasoning = text;
            }
            "function_call" | "audio" => {
                let reason = "This server does not support it.";
                return Err(ApiError::unsupported_parameter(value.path(), reason));
            }
            "prefix" | "partial" => {
                if value.boolean()? {
                    open = Some(value.path());
                }
            }
            "images" | "videos" | "files" | "attachments" => refuse_media(&value)?,
            _ => value.ignore(),
        }
        Ok(())
    })?;
    Ok((parts.into_message(node)?, open))
}

/// Refuses what is no text, and would be lost.
fn refuse_media(node: &Node<'_, '_>) -> Result<(), ApiError> {
    let is_nothing = node.is_empty_container() || matches!(node.text(), "false" | "\"\"");
    if is_nothing {
        return Ok(());
    }
    Err(ApiError::unsupported_parameter(node.path(), "This model takes only text."))
}

impl Parts {
    /// Checks what belongs to which role.
    fn into_message(self, node: &Node<'_, '_>) -> Result<Message, ApiError> {
        let Self { role, content, name, tool_calls, tool_call_id, reasoning, refusal } = self;
        let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
        let role = role.ok_or_else(|| missing("role"))?;
        if role != Role::Assistant && !tool_calls.is_empty() {
            let reason = "Only messages of the assistant have 'tool_calls'.";
            return Err(ApiError::invalid_value(node.path_of("tool_calls"), reason));
        }
        if role != Role::Tool && tool_call_id.is_some() {
            let reason = "Only messages of the role 'tool' have a 'tool_call_id'.";
            return Err(ApiError::invalid_value(node.path_of("tool_call_id"), reason));
        }
        if role == Role::Tool && tool_call_id.is_none() {
            return Err(missing("tool_call_id"));
        }
        if role == Role::Function && name.is_none() {
            return Err(missing("name"));
        }
        let (content, thought) = content.map(|content| (content.text, content.reasoning)).unzip();
        if let Some(thought) = thought.as_ref().and_then(Option::as_ref).filter(|_| role != Role::Assistant) {
            let reason = "Only messages of the assistant have reasoning.";
            return Err(ApiError::unsupported_parameter(thought.path.clone(), reason));
        }
        let reasoning =
            reasoning.or(thought.flatten().map(|thought| thought.text).filter(|text| !text.is_empty()));
        let content = content.or(refusal);
        // An answer that was cut while the model thought has no content, and clients drop its reasoning.
        let may_say_nothing = role == Role::Assistant && (reasoning.is_some() || !node.is_strict());
        if content.is_none() && tool_calls.is_empty() && !may_say_nothing {
            return Err(missing("content"));
        }
        Ok(Message { role, content, name, tool_calls, tool_call_id, reasoning })
    }
}

impl Message {
    /// Bytes of text that a template may print.
    pub(super) fn text_bytes(&self) -> usize {
        let texts = [&self.content, &self.name, &self.tool_call_id, &self.reasoning];
        let own: usize = texts.into_iter().flatten().map(String::len).sum();
        let calls = self.tool_calls.iter().map(|call| call.name.len() + call.id.len() + call.arguments.len());
        own + calls.sum::<usize>()
    }

    /// The message as chat templates know it (the form of Hugging Face's `apply_chat_template`). `role` is
    /// given, as templates differ in the roles that they know.
    pub fn into_template_value(self, role: &str) -> Value {
        let mut map = Map::new();
        map.insert("role".to_owned(), role.into());
        map.insert("content".to_owned(), self.content.unwrap_or_default().into());
        let optional =
            [("name", self.name), ("tool_call_id", self.tool_call_id), ("reasoning_content", self.reasoning)];
        for (key, value) in optional {
            if let Some(value) = value {
                map.insert(key.to_owned(), value.into());
            }
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.into_iter().map(ToolCall::into_template_value).collect();
            map.insert("tool_calls".to_owned(), calls);
        }
        Value::Object(map)
    }
}

/// Every call of a tool needs its one reply before anyone else speaks, and every reply its call: templates
/// would lose or misplace it.
fn check_replies(messages: &[Message], node: &Node<'_, '_>) -> Result<(), ApiError> {
    let unanswered = |idx: usize| {
        let reason =
            "An assistant message with 'tool_calls' must be followed by a tool message for each call.";
        Err(ApiError::invalid_value(format!("{}[{idx}].tool_calls", node.path()), reason))
    };
    let mut caller_idx = 0;
    let mut open: Vec<&str> = Vec::new();
    for (idx, message) in messages.iter().enumerate() {
        if message.role == Role::Tool {
            let id = message.tool_call_id.as_deref().unwrap_or_default();
            let Some(call) = open.iter().position(|call| *call == id) else {
                let calls = messages.get(caller_idx).map_or(&[][..], |caller| &caller.tool_calls);
                let reason = match calls.iter().any(|call| call.id == id) {
                    true => "This call of a tool has already been answered.",
                    false => "The message before has no call of a tool with this id.",
                };
                let path = format!("{}[{idx}].tool_call_id", node.path());
                return Err(ApiError::invalid_value(path, reason));
            };
            open.remove(call);
            continue;
        }
        if !open.is_empty() {
            return unanswered(caller_idx);
        }
        caller_idx = idx;
        open.extend(message.tool_calls.iter().map(|call| call.id.as_str()));
    }
    if open.is_empty() { Ok(()) } else { unanswered(caller_idx) }
}
