//! The messages of a conversation, read and checked. Does not know tools.

mod content;
mod reasoning_part;
mod tool_calls;

use content::{Content, read_content, read_mark};
use tool_calls::read_tool_calls;

use crate::error::ApiError;
use crate::json::{Node, TreeBudget};
use crate::spec::{
    CachePoint, ContentPart, MAX_CACHE_POINTS, MAX_MESSAGES, MAX_NAME_BYTES, Message, Role, ToolCall,
    check_replies,
};

/// Keys of a message. Those from `annotations` on have no effect: other servers' answers contain them, and
/// clients send them back. The last six would change the answer: `prefix` (DeepSeek, Mistral) and `partial`
/// (Moonshot) leave the last message open; the others hold media.
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
/// Number of keys that strict servers accept.
const N_STRICT_KEYS: usize = 17;

/// The messages of a conversation.
#[derive(Debug)]
pub struct Messages {
    /// Messages, at least one.
    pub messages: Vec<Message>,
    /// Path of the parameter that leaves the last message open, if any.
    pub open: Option<String>,
    /// Places of `cache_control`: the last ones, whose prefixes contain those of the others.
    pub cache_points: Vec<CachePoint>,
}

/// Reads `messages`. Takes the values of their trees from `budget`.
///
/// # Errors
/// A 400 that names the path.
pub fn read_messages(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Messages, ApiError> {
    let mut messages: Vec<Message> = Vec::new();
    let (mut open, mut n_open, mut cache_points) = (None, 0, Vec::new());
    node.elements(MAX_MESSAGES, |_, element| {
        let ReadMessage { message, open: mark, marks } = read_message(&element, budget)?;
        let (n_messages, parts) = (messages.len() + 1, message.content.as_deref().unwrap_or_default());
        cache_points.extend(
            marks.iter().map(|&(n_parts, keep_s)| CachePoint::behind(n_messages, parts, n_parts, keep_s)),
        );
        messages.push(message);
        n_open += usize::from(mark.is_some());
        open = mark;
        Ok(())
    })?;
    cache_points.drain(..cache_points.len().saturating_sub(MAX_CACHE_POINTS));
    let last = messages.last().ok_or_else(|| ApiError::empty_array(node.path()))?;
    if let Some(mark) = open.as_ref().filter(|_| last.role != Role::Assistant) {
        let reason = "Only a last message of the assistant can be continued.";
        return Err(ApiError::invalid_value(mark.clone(), reason));
    }
    if n_open > usize::from(open.is_some()) {
        // Earlier messages that were continued in their time.
        node.ignore_as("messages[].prefix");
    }
    check_replies(&messages, |idx, key| format!("{}[{idx}].{key}", node.path()))?;
    Ok(Messages { messages, open, cache_points })
}

/// The members of a message read so far.
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

/// A message with what stands beside its content.
struct ReadMessage {
    message: Message,
    /// Path of its parameter that leaves it open, if any.
    open: Option<String>,
    /// Numbers of parts up to the marks of `cache_control`, and their times in seconds.
    marks: Vec<(usize, u32)>,
}

fn read_message(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<ReadMessage, ApiError> {
    let mut parts = Parts::default();
    let (mut open, mut keep_s) = (None, None);
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
                // Servers use two names for reasoning, so clients send both; the same text twice is
                // accepted.
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
            "cache_control" => keep_s = read_mark(&value),
            _ => value.ignore(),
        }
        Ok(())
    })?;
    let mut marks =
        parts.content.as_mut().map(|content| std::mem::take(&mut content.marks)).unwrap_or_default();
    // A mark of the whole message is behind all of its parts.
    marks.extend(keep_s.map(|keep_s| (usize::MAX, keep_s)));
    Ok(ReadMessage { message: parts.into_message(node)?, open, marks })
}

/// Refuses media, which would be lost.
fn refuse_media(node: &Node<'_, '_>) -> Result<(), ApiError> {
    let is_nothing = node.is_empty_container() || matches!(node.text(), "false" | "\"\"");
    if is_nothing {
        return Ok(());
    }
    Err(ApiError::unsupported_parameter(node.path(), "This model takes only text."))
}

impl Parts {
    /// Checks which members the role allows and requires.
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
        let (content, thought) = content.map(|content| (content.parts, content.reasoning)).unzip();
        if let Some(thought) = thought.as_ref().and_then(Option::as_ref).filter(|_| role != Role::Assistant) {
            let reason = "Only messages of the assistant have reasoning.";
            return Err(ApiError::unsupported_parameter(thought.path.clone(), reason));
        }
        let reasoning =
            reasoning.or(thought.flatten().map(|thought| thought.text).filter(|text| !text.is_empty()));
        let content = content.or(refusal.map(|text| vec![ContentPart::Text(text)]));
        // An answer that was truncated during reasoning has no content, and clients drop its reasoning.
        let may_say_nothing = role == Role::Assistant && (reasoning.is_some() || !node.is_strict());
        if content.is_none() && tool_calls.is_empty() && !may_say_nothing {
            return Err(missing("content"));
        }
        Ok(Message { role, content, name, tool_calls, tool_call_id, reasoning })
    }
}
