//! The messages of a conversation, read and checked, and as the tree a chat template walks. Refuses to know
//! templates and tools.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::field::IgnoredParameters;
use super::json::{JsonType, MAX_MEMBERS, Node};

/// Most messages of a conversation.
pub const MAX_MESSAGES: usize = 10_000;

/// Most parts of one message's content.
const MAX_PARTS: usize = 10_000;

/// Most calls of tools in one message.
const MAX_TOOL_CALLS: usize = 128;

const MAX_NAME_BYTES: usize = 512;

/// Most values in the arguments of a call that are handed to the template as a tree.
const MAX_ARGUMENT_VALUES: usize = 10_000;

/// Who speaks.
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
    /// Who speaks.
    pub role: Role,
    /// What is said; text parts are joined by line breaks. `None` only beside `tool_calls`.
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

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// What its answer refers to.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as the model wrote them: JSON, if it did well.
    pub arguments: String,
}

/// Reads `messages`.
///
/// # Errors
/// A 400 that names the path.
pub fn read_messages(node: &Node<'_, '_>, ignored: &mut IgnoredParameters) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    node.elements(MAX_MESSAGES, |_, element| {
        messages.push(read_message(&element, ignored)?);
        Ok(())
    })?;
    if messages.is_empty() {
        return Err(ApiError::empty_array(node.path()));
    }
    check_replies(&messages, node)?;
    Ok(messages)
}

#[derive(Default)]
struct Parts {
    role: Option<Role>,
    content: Option<String>,
    name: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
}

fn read_message(node: &Node<'_, '_>, ignored: &mut IgnoredParameters) -> Result<Message, ApiError> {
    let mut parts = Parts::default();
    node.members(MAX_MEMBERS, |key, value| {
        if key == "role" {
            return value.put(&mut parts.role, Role::ALL[value.one_of(&Role::NAMES)?]);
        }
        if value.is_null() {
            return Ok(());
        }
        match key {
            "content" => value.put(&mut parts.content, read_content(&value)?),
            "name" => value.put(&mut parts.name, value.string(MAX_NAME_BYTES)?.into_owned()),
            "tool_calls" => value.put(&mut parts.tool_calls, read_tool_calls(&value)?),
            "tool_call_id" => value.put(&mut parts.tool_call_id, value.string(MAX_NAME_BYTES)?.into_owned()),
            "reasoning" | "reasoning_content" => {
                let text = value.string(usize::MAX)?.into_owned();
                // Servers disagree on the name, so that clients repeat both: the same text twice is no fault.
                if parts.reasoning.as_ref() == Some(&text) {
                    return Ok(());
                }
                value.put(&mut parts.reasoning, text)
            }
            "refusal" => value.put(&mut parts.refusal, value.string(usize::MAX)?.into_owned()),
            "function_call" | "audio" => {
                Err(ApiError::unsupported_parameter(value.path(), "This server does not support it."))
            }
            _ => {
                ignored.add(&format!("messages[].{key}"));
                Ok(())
            }
        }
    })?;
    let role = parts.role.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("role")))?;
    let tool_calls = parts.tool_calls.unwrap_or_default();
    if role != Role::Assistant && !tool_calls.is_empty() {
        let reason = "Only messages of the assistant have 'tool_calls'.";
        return Err(ApiError::invalid_value(node.path_of("tool_calls"), reason));
    }
    let content = parts.content.or(parts.refusal);
    if content.is_none() && tool_calls.is_empty() {
        return Err(ApiError::missing_required_parameter(node.path_of("content")));
    }
    let Parts { name, tool_call_id, reasoning, .. } = parts;
    Ok(Message { role, content, name, tool_calls, tool_call_id, reasoning })
}

fn read_content(node: &Node<'_, '_>) -> Result<String, ApiError> {
    match node.json_type() {
        JsonType::String => Ok(node.string(usize::MAX)?.into_owned()),
        JsonType::Array => {
            let mut content = String::new();
            node.elements(MAX_PARTS, |idx, part| {
                if idx > 0 {
                    content.push('\n');
                }
                content.push_str(&read_part(&part)?);
                Ok(())
            })?;
            Ok(content)
        }
        _ => Err(node.wrong_type("a string or an array of content parts")),
    }
}

fn read_part<'a>(node: &Node<'a, '_>) -> Result<Cow<'a, str>, ApiError> {
    const KINDS: &[&str] = &[
        "text",
        "input_text",
        "output_text",
        "refusal",
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "audio_url",
        "video_url",
        "video",
        "file",
    ];
    const N_TEXT_KINDS: usize = 4;
    let (mut kind, mut text) = (None, None);
    node.members(MAX_MEMBERS, |key, value| match key {
        "type" => value.put(&mut kind, value.one_of(KINDS)?),
        "text" | "refusal" => value.put(&mut text, value.string(usize::MAX)?),
        _ => Ok(()),
    })?;
    match kind {
        None => Err(ApiError::missing_required_parameter(node.path_of("type"))),
        Some(kind) if kind >= N_TEXT_KINDS => {
            let reason = "This model takes only text.";
            Err(ApiError::unsupported_parameter(node.path_of(KINDS[kind]), reason))
        }
        Some(kind) => {
            let key = if KINDS[kind] == "refusal" { "refusal" } else { "text" };
            text.ok_or_else(|| ApiError::missing_required_parameter(node.path_of(key)))
        }
    }
}

fn read_tool_calls(node: &Node<'_, '_>) -> Result<Vec<ToolCall>, ApiError> {
    let mut calls = Vec::new();
    node.elements(MAX_TOOL_CALLS, |_, call| {
        let (mut id, mut kind, mut function) = (None, None, None);
        call.members(MAX_MEMBERS, |key, value| match key {
            "id" => value.put(&mut id, value.string(MAX_NAME_BYTES)?.into_owned()),
            "type" => value.put(&mut kind, value.one_of(&["function"])?),
            "function" => value.put(&mut function, read_called_function(&value)?),
            _ => Ok(()),
        })?;
        let id = id.ok_or_else(|| ApiError::missing_required_parameter(call.path_of("id")))?;
        let (name, arguments) =
            function.ok_or_else(|| ApiError::missing_required_parameter(call.path_of("function")))?;
        calls.push(ToolCall { id, name, arguments });
        Ok(())
    })?;
    Ok(calls)
}

fn read_called_function(node: &Node<'_, '_>) -> Result<(String, String), ApiError> {
    let (mut name, mut arguments) = (None, None);
    node.members(MAX_MEMBERS, |key, value| match key {
        "name" => value.put(&mut name, value.string(MAX_NAME_BYTES)?.into_owned()),
        "arguments" => value.put(&mut arguments, value.string(usize::MAX)?.into_owned()),
        _ => Ok(()),
    })?;
    let name = name.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("name")))?;
    Ok((name, arguments.unwrap_or_default()))
}

/// Every call of a tool needs its reply before anyone else speaks: templates would lose or misplace it.
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
            let answered = match &message.tool_call_id {
                Some(id) => open.iter().position(|call| call == id),
                None => (!open.is_empty()).then_some(0),
            };
            answered.map(|call| open.remove(call));
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

impl Message {
    /// The message as chat templates know it (the form of Hugging Face's `apply_chat_template`): calls have
    /// their arguments as a tree where they are a JSON object. `role` is given, as templates differ in the
    /// roles that they know.
    pub fn to_template_value(&self, role: &str) -> Value {
        let mut map = Map::new();
        map.insert("role".to_owned(), role.into());
        map.insert("content".to_owned(), self.content.as_deref().unwrap_or_default().into());
        let optional = [
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
            ("reasoning_content", &self.reasoning),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                map.insert(key.to_owned(), value.as_str().into());
            }
        }
        if !self.tool_calls.is_empty() {
            map.insert(
                "tool_calls".to_owned(),
                self.tool_calls.iter().map(ToolCall::to_template_value).collect(),
            );
        }
        Value::Object(map)
    }
}

impl ToolCall {
    fn to_template_value(&self) -> Value {
        let arguments = Node::body(self.arguments.as_bytes()).and_then(|node| node.tree(MAX_ARGUMENT_VALUES));
        let arguments = arguments.unwrap_or_else(|_| self.arguments.as_str().into());
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}})
    }
}
