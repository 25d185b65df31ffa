//! Messages of a conversation, and their form in chat templates.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::image::ImagePart;
use crate::error::ApiError;

/// Maximum number of parts of a message's content.
pub const MAX_PARTS: usize = 10_000;
/// Maximum number of messages of a conversation.
pub const MAX_MESSAGES: usize = 10_000;
/// Maximum bytes of a name or an id.
pub const MAX_NAME_BYTES: usize = 512;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The author of instructions.
    System,
    /// The author of instructions, as newer OpenAI models call it.
    Developer,
    /// The user of the model.
    User,
    /// The model, for its own earlier messages.
    Assistant,
    /// The author of a tool call's result.
    Tool,
    /// The author of a function call's result (the older form).
    Function,
}

impl Role {
    pub(crate) const ALL: [Self; 6] =
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool, Self::Function];
    pub(crate) const NAMES: [&'static str; 6] =
        ["system", "developer", "user", "assistant", "tool", "function"];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// Parts of the content. `None` only for answers without content.
    pub content: Option<Vec<ContentPart>>,
    /// Name of the author or function.
    pub name: Option<String>,
    /// Tool calls of the model.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that this message is the result of.
    pub tool_call_id: Option<String>,
    /// Reasoning before the answer.
    pub reasoning: Option<String>,
}

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentPart {
    /// A part of text.
    Text(String),
    /// An image, in the body or at a URL.
    Image(Box<ImagePart>),
}

impl ContentPart {
    /// The text of a part of text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

impl From<&str> for ContentPart {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id that the call's result refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as the model wrote them: JSON, unless the model made a mistake.
    pub arguments: String,
}

impl Message {
    /// Creates a message with this content and nothing else.
    pub fn new(role: Role, content: Vec<ContentPart>) -> Self {
        Self {
            role,
            content: Some(content),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning: None,
        }
    }

    /// The text of the message: its text parts, joined by line breaks. `None` without content.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        let parts = self.content.as_deref()?;
        if let [ContentPart::Text(text)] = parts {
            return Some(Cow::Borrowed(text));
        }
        let texts: Vec<&str> = parts.iter().filter_map(ContentPart::text).collect();
        Some(Cow::Owned(texts.join("\n")))
    }

    /// Bytes of text that a template may print.
    pub(crate) fn text_bytes(&self) -> usize {
        let texts = [&self.name, &self.tool_call_id, &self.reasoning];
        let own: usize = texts.into_iter().flatten().map(String::len).sum();
        let parts = self.content.iter().flatten().map(|part| part.text().map_or(0, str::len) + 1);
        let own = own + parts.sum::<usize>();
        let calls = self.tool_calls.iter().map(|call| call.name.len() + call.id.len() + call.arguments.len());
        own + calls.sum::<usize>()
    }

    /// The images of the message, in order.
    pub fn images(&self) -> impl Iterator<Item = &ImagePart> {
        self.content.iter().flatten().filter_map(|part| match part {
            ContentPart::Image(image) => Some(&**image),
            ContentPart::Text(_) => None,
        })
    }

    /// The images of the message, in order, to replace their sources.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut ImagePart> {
        self.content.iter_mut().flatten().filter_map(|part| match part {
            ContentPart::Image(image) => Some(&mut **image),
            ContentPart::Text(_) => None,
        })
    }

    /// The message in the form of chat templates (Hugging Face's `apply_chat_template`). The caller passes
    /// `role`, as templates support different roles, and the form of images. Content with images is a list of
    /// parts, other content a string.
    pub fn into_template_value(mut self, role: &str, image_value: &dyn Fn(&ImagePart) -> Value) -> Value {
        let mut map = Map::new();
        map.insert("role".to_owned(), role.into());
        let has_images = self.images().next().is_some();
        let content = match self.content.as_deref_mut() {
            Some([ContentPart::Text(text)]) => std::mem::take(text).into(),
            Some(parts) if has_images => {
                let value = |part: &mut ContentPart| match part {
                    ContentPart::Text(text) => json!({"type": "text", "text": std::mem::take(text)}),
                    ContentPart::Image(image) => image_value(image),
                };
                parts.iter_mut().map(value).collect()
            }
            _ => Value::from(self.text().unwrap_or_default().into_owned()),
        };
        map.insert("content".to_owned(), content);
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

impl ToolCall {
    /// The call in the form of chat templates. Its arguments remain text; the template layer converts them
    /// for the template.
    pub(crate) fn into_template_value(self) -> Value {
        let object = |members: [(&str, Value); 2]| members.map(|(key, value)| (key.to_owned(), value));
        let function = object([("name", self.name.into()), ("arguments", self.arguments.into())]);
        let mut call = Map::from_iter([("id".to_owned(), self.id.into())]);
        call.extend(object([
            ("type", "function".into()),
            ("function", Value::Object(function.into_iter().collect())),
        ]));
        Value::Object(call)
    }
}

/// Checks that every tool call has exactly one result, before any message of another role, and every result
/// a call: templates would lose or misplace others.
///
/// # Errors
/// `invalid_value` at the path that `path_of` returns for the index of a message and one of its keys.
pub(crate) fn check_replies(
    messages: &[Message],
    path_of: impl Fn(usize, &str) -> String,
) -> Result<(), ApiError> {
    let unanswered = |idx: usize| {
        let reason =
            "An assistant message with 'tool_calls' must be followed by a tool message for each call.";
        Err(ApiError::invalid_value(path_of(idx, "tool_calls"), reason))
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
                return Err(ApiError::invalid_value(path_of(idx, "tool_call_id"), reason));
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
