//! Messages of a chat, as neutral messages. Ollama's calls have no ids: results match calls by name or by
//! order.

use crate::error::ApiError;
use crate::image_source::{of_base64, of_data_url};
use crate::json::{JsonType, Node, TreeBudget};
use crate::spec::{
    ContentPart, ImagePart, MAX_IMAGES, MAX_MESSAGES, MAX_NAME_BYTES, Message, Role, ToolCall,
};

const ROLES: &[&str] = &["system", "user", "assistant", "tool"];
/// Maximum number of tool calls in a message.
const MAX_CALLS: usize = 128;
/// Values in a template's tree for a call without its arguments.
const VALUES_OF_A_CALL: usize = 5;

/// Reads `messages`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_messages(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    // Names and ids of calls that have no result yet.
    let mut open: Vec<(String, String)> = Vec::new();
    node.elements(MAX_MESSAGES, |idx, element| {
        let mut message = read_message(&element, idx, budget)?;
        match message.role {
            Role::Tool => {
                let named = message.name.take();
                let by_name = open.iter().position(|(name, _)| Some(name) == named.as_ref());
                let Some(at) = by_name.or((!open.is_empty()).then_some(0)) else {
                    let reason = "The message before has no call of a tool that waits for its result.";
                    return Err(ApiError::invalid_value(element.path(), reason));
                };
                message.tool_call_id = Some(open.remove(at).1);
            }
            Role::Assistant => {
                let calls = message.tool_calls.iter();
                open = calls.map(|call| (call.name.clone(), call.id.clone())).collect();
            }
            _ => {}
        }
        messages.push(message);
        Ok(())
    })?;
    Ok(messages)
}

fn read_message(node: &Node<'_, '_>, idx: usize, budget: &mut TreeBudget) -> Result<Message, ApiError> {
    const KEYS: &[&str] = &["role", "content", "thinking", "images", "tool_calls", "tool_name", "name"];
    let mut role = None;
    let (mut message, mut images) = (Message::new(Role::User, Vec::new()), Vec::new());
    budget.take(3, node)?;
    node.known_members(KEYS, |key, value| {
        let text = || value.string(usize::MAX).map(|text| text.into_owned());
        match key {
            "role" => role = Some(ROLES[value.one_of(ROLES)?]),
            _ if value.is_null() => {}
            "content" => message.content = Some(vec![ContentPart::Text(text()?)]),
            "thinking" => message.reasoning = Some(text()?).filter(|text| !text.is_empty()),
            "tool_calls" => message.tool_calls = read_calls(&value, idx, budget)?,
            "tool_name" | "name" => message.name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            _ => images = read_images(&value)?,
        }
        Ok(())
    })?;
    // Ollama shows a message's images before its text.
    message.content.get_or_insert_default().splice(0..0, images);
    message.role = match role.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("role")))? {
        "system" => Role::System,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => Role::User,
    };
    if message.role != Role::Assistant && !message.tool_calls.is_empty() {
        let reason = "Only messages of the assistant have 'tool_calls'.";
        return Err(ApiError::invalid_value(node.path_of("tool_calls"), reason));
    }
    if message.role != Role::Assistant {
        message.reasoning = None;
    }
    Ok(message)
}

/// Reads `images`: files in base64, or `data:` URLs.
///
/// # Errors
/// `invalid_image`; a refusal where no model takes images.
pub(super) fn read_images(node: &Node<'_, '_>) -> Result<Vec<ContentPart>, ApiError> {
    let mut images = Vec::new();
    if node.is_empty_container() {
        return Ok(images);
    }
    if !node.takes_images() {
        return Err(ApiError::only_text(node.path()));
    }
    node.elements(MAX_IMAGES, |_, image| {
        let (param, text) = (image.path(), image.string(usize::MAX)?);
        let source = match text.starts_with("data:") {
            true => of_data_url(&text, || param.clone())?,
            false => of_base64("image/png", &text).ok_or_else(|| ApiError::invalid_image(param.clone()))?,
        };
        images.push(ContentPart::Image(Box::new(ImagePart { source, detail: None, param })));
        Ok(())
    })?;
    Ok(images)
}

fn read_calls(
    node: &Node<'_, '_>,
    message_idx: usize,
    budget: &mut TreeBudget,
) -> Result<Vec<ToolCall>, ApiError> {
    let mut calls = Vec::new();
    node.elements(MAX_CALLS, |idx, call| {
        budget.take(VALUES_OF_A_CALL, &call)?;
        let (mut name, mut arguments) = (None, "{}".to_owned());
        call.known_members(&["function", "id", "type"], |key, value| {
            if key != "function" {
                return Ok(());
            }
            value.known_members(&["name", "arguments", "index"], |key, value| {
                match key {
                    "name" => name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
                    "arguments" if value.json_type() == JsonType::Object => {
                        budget.take_tree(&value)?;
                        arguments = value.text().to_owned();
                    }
                    "arguments" if !value.is_null() => return Err(value.wrong_type("an object")),
                    _ => {}
                }
                Ok(())
            })
        })?;
        let name = name.ok_or_else(|| ApiError::missing_required_parameter(call.path_of("function.name")))?;
        calls.push(ToolCall { id: format!("call_{message_idx}_{idx}"), name, arguments });
        Ok(())
    })?;
    Ok(calls)
}
