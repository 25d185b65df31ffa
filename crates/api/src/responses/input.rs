//! `input`: a text, or items. Does not know their use.

use super::item::{
    Author, CallOutput, Compaction, Content, CustomToolCall, FunctionCall, Ids, Item, ItemStatus, Message,
    Origin, Output, Reasoning, Side, Thought,
};
use super::mcp_input;
use super::members::{name_of, text_of};
use crate::error::ApiError;
use crate::image_source::{read_detail, read_url};
use crate::json::{JsonType, Node, TreeBudget};
use crate::spec::{MAX_MESSAGES, MAX_PARTS};

/// Maximum number of items of a request.
pub(super) const MAX_ITEMS: usize = MAX_MESSAGES;
/// Values of a call in a template's tree, its arguments apart.
const VALUES_OF_AN_ITEM: usize = 5;

/// The types of items. The first twelve are read; the others belong to tools that run at OpenAI.
const TYPES: &[&str] = &[
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "compaction",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "item_reference",
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];
const N_READ_TYPES: usize = 12;
const AUTHORS: &[&str] = &["user", "assistant", "system", "developer"];
const STATUSES: &[&str] = &["in_progress", "completed", "incomplete"];

/// An entry of a request's input.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// An item with its content.
    Item(Item),
    /// The id of an item that is kept.
    Reference(String),
}

/// Reads `input`. Items without an id stay without one.
///
/// # Errors
/// A 400 that names the path; items of tools that run at OpenAI are refused by name.
pub(super) fn read_input(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Vec<Entry>, ApiError> {
    match node.json_type() {
        JsonType::String => {
            budget.take(3, node)?;
            let content = vec![Content::InputText { text: node.string(usize::MAX)?.into_owned() }];
            Ok(vec![Entry::Item(Item::Message(message(Author::User, content)))])
        }
        JsonType::Array => read_items(node, MAX_ITEMS, budget),
        _ => Err(node.wrong_type("a string or an array of items")),
    }
}

/// Reads a list of at most `max` items.
///
/// # Errors
/// When an item is invalid; the error has its path.
pub(super) fn read_items(
    node: &Node<'_, '_>,
    max: usize,
    budget: &mut TreeBudget,
) -> Result<Vec<Entry>, ApiError> {
    let mut entries = Vec::new();
    node.elements(max, |_, element| {
        entries.push(read_entry(&element, budget)?);
        Ok(())
    })?;
    Ok(entries)
}

/// Gives the items of a response ids where they have none.
pub(super) fn name_items(items: &mut [Item], ids: &Ids) {
    for (idx, item) in items.iter_mut().enumerate() {
        if item.id().is_empty() {
            item.set_id(ids.item(item.prefix(), Side::Input, idx));
        }
    }
}

fn message(role: Author, content: Vec<Content>) -> Message {
    Message { id: String::new(), status: ItemStatus::Completed, role, content, phase: None }
}

fn read_entry(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Entry, ApiError> {
    let (mut kind, mut has_role) = (None, false);
    node.members(usize::MAX, |key, value| match key {
        "type" if !value.is_null() => value.put(&mut kind, value.one_of(TYPES)?),
        "role" => {
            has_role = true;
            Ok(())
        }
        _ => Ok(()),
    })?;
    // A message and a reference may leave their types out.
    let kind = TYPES[kind.unwrap_or(if has_role { 0 } else { N_READ_TYPES - 1 })];
    budget.take(VALUES_OF_AN_ITEM, node)?;
    let item = match kind {
        "message" => Item::Message(read_message(node)?),
        "reasoning" => Item::Reasoning(read_reasoning(node)?),
        "function_call" => {
            let call = read_call(node, "arguments")?;
            budget.take_text(&call.text, node)?;
            let CallParts { id, call_id, name, namespace, text: arguments, status } = call;
            Item::FunctionCall(FunctionCall { id, call_id, name, namespace, arguments, status })
        }
        "custom_tool_call" => {
            let call = read_call(node, "input")?;
            let CallParts { id, call_id, name, namespace, text: input, status } = call;
            Item::CustomToolCall(CustomToolCall { id, call_id, name, namespace, input, status })
        }
        "function_call_output" => Item::FunctionCallOutput(read_output(node)?),
        "custom_tool_call_output" => Item::CustomToolCallOutput(read_output(node)?),
        "compaction" => Item::Compaction(read_compaction(node)?),
        "mcp_list_tools" => Item::McpListTools(mcp_input::read_list(node, budget)?),
        "mcp_call" => {
            let call = mcp_input::read_call(node, budget)?;
            budget.take_text(&call.arguments, node)?;
            Item::McpCall(call)
        }
        "mcp_approval_request" => {
            let call = mcp_input::read_approval_request(node)?;
            budget.take_text(&call.arguments, node)?;
            Item::McpApprovalRequest(call)
        }
        "mcp_approval_response" => Item::McpApprovalResponse(mcp_input::read_approval_response(node)?),
        "item_reference" => return read_reference(node),
        other => {
            let reason =
                format!("Items of the type '{other}' belong to tools that this server does not have.");
            return Err(ApiError::unsupported_parameter(node.path(), &reason));
        }
    };
    Ok(Entry::Item(item))
}

fn status_of(value: &Node<'_, '_>) -> Result<ItemStatus, ApiError> {
    Ok([ItemStatus::InProgress, ItemStatus::Completed, ItemStatus::Incomplete][value.one_of(STATUSES)?])
}

fn missing<'n>(node: &'n Node<'_, '_>, key: &'n str) -> impl FnOnce() -> ApiError + 'n {
    move || ApiError::missing_required_parameter(node.path_of(key))
}

fn read_message(node: &Node<'_, '_>) -> Result<Message, ApiError> {
    const KEYS: &[&str] = &["type", "id", "role", "content", "status", "phase"];
    let (mut role, mut content, mut read) = (None, None, message(Author::User, Vec::new()));
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => read.id = name_of(&value)?,
            "role" => {
                let authors = [Author::User, Author::Assistant, Author::System, Author::Developer];
                role = Some(authors[value.one_of(AUTHORS)?]);
            }
            "content" => content = Some(value.text()),
            "status" => read.status = status_of(&value)?,
            "phase" => read.phase = Some(name_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    read.role = role.ok_or_else(missing(node, "role"))?;
    content.ok_or_else(missing(node, "content"))?;
    // Its parts depend on its author, which may stand behind them.
    node.members(usize::MAX, |key, value| {
        if key == "content" {
            read.content = read_content(&value, read.role == Author::Assistant)?;
        }
        Ok(())
    })?;
    Ok(read)
}

/// Reads a text or a list of parts, of the model or for it.
fn read_content(node: &Node<'_, '_>, is_output: bool) -> Result<Vec<Content>, ApiError> {
    let part = |text: String| if is_output { Content::output(text) } else { Content::InputText { text } };
    match node.json_type() {
        JsonType::String => Ok(vec![part(text_of(node)?)]),
        JsonType::Array => {
            let mut parts = Vec::new();
            node.elements(MAX_PARTS, |_, element| {
                parts.push(match read_part(&element)? {
                    Content::InputText { text } | Content::OutputText { text, .. } => part(text),
                    refusal => refusal,
                });
                Ok(())
            })?;
            Ok(parts)
        }
        _ => Err(node.wrong_type("a string or an array of parts")),
    }
}

fn read_part(node: &Node<'_, '_>) -> Result<Content, ApiError> {
    const KINDS: &[&str] =
        &["input_text", "output_text", "text", "refusal", "input_image", "input_file", "input_audio"];
    let mut kind = None;
    node.members(usize::MAX, |key, value| match key {
        "type" => value.put(&mut kind, value.one_of(KINDS)?),
        _ => Ok(()),
    })?;
    let kind = KINDS[kind.ok_or_else(missing(node, "type"))?];
    let key = match kind {
        "input_text" | "output_text" | "text" => "text",
        "refusal" => "refusal",
        "input_image" if node.takes_images() => return read_image(node),
        _ => {
            let reason = format!("Parts of the type '{kind}' are not supported: only text is.");
            return Err(ApiError::unsupported_parameter(node.path(), &reason));
        }
    };
    let mut text = None;
    let known = ["type", key, "annotations", "logprobs", "prompt_cache_breakpoint"];
    node.known_members(&known, |name, value| {
        if name == key {
            text = Some(text_of(&value)?);
        }
        Ok(())
    })?;
    let text = text.ok_or_else(missing(node, key))?;
    Ok(if key == "text" { Content::InputText { text } } else { Content::Refusal { refusal: text } })
}

/// Reads an image by its URL; files of the Files API are refused.
fn read_image(node: &Node<'_, '_>) -> Result<Content, ApiError> {
    let (mut url, mut detail, mut origin) = (None, None, Origin::default());
    node.known_members(
        &["type", "image_url", "detail", "file_id", "prompt_cache_breakpoint"],
        |key, value| {
            match key {
                _ if value.is_null() => {}
                "image_url" => {
                    // Checked here, where the path is known; it becomes a file when the conversation is read.
                    read_url(&value)?;
                    url = Some(text_of(&value)?);
                    origin.0 = value.path();
                }
                "detail" => detail = read_detail(&value)?.map(str::to_owned),
                "file_id" => {
                    let reason = "Images are taken from URLs, 'data:' URLs among them, not from files.";
                    return Err(ApiError::unsupported_parameter(value.path(), reason));
                }
                _ => {}
            }
            Ok(())
        },
    )?;
    Ok(Content::InputImage { image_url: url.ok_or_else(missing(node, "image_url"))?, detail, origin })
}

fn read_reasoning(node: &Node<'_, '_>) -> Result<Reasoning, ApiError> {
    const KEYS: &[&str] = &["type", "id", "summary", "content", "encrypted_content", "status"];
    let mut read = Reasoning {
        id: String::new(),
        summary: Vec::new(),
        content: Vec::new(),
        encrypted_content: None,
        status: None,
    };
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => read.id = name_of(&value)?,
            "summary" => read.summary = read_thoughts(&value)?,
            "content" => read.content = read_thoughts(&value)?,
            "encrypted_content" => read.encrypted_content = Some(text_of(&value)?),
            "status" => read.status = Some(status_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(read)
}

fn read_thoughts(node: &Node<'_, '_>) -> Result<Vec<Thought>, ApiError> {
    const KINDS: &[&str] = &["reasoning_text", "summary_text", "text"];
    let mut thoughts = Vec::new();
    node.elements(MAX_PARTS, |_, element| {
        let (mut kind, mut text) = (None, None);
        element.known_members(&["type", "text"], |key, value| {
            match key {
                "type" => kind = Some(value.one_of(KINDS)?),
                _ => text = Some(text_of(&value)?),
            }
            Ok(())
        })?;
        let kind = kind.ok_or_else(missing(&element, "type"))?;
        let text = text.ok_or_else(missing(&element, "text"))?;
        let is_summary = KINDS[kind] == "summary_text";
        thoughts.push(if is_summary {
            Thought::SummaryText { text }
        } else {
            Thought::ReasoningText { text }
        });
        Ok(())
    })?;
    Ok(thoughts)
}

/// Fields that calls of functions and of custom tools share.
struct CallParts {
    id: String,
    call_id: String,
    name: String,
    namespace: Option<String>,
    text: String,
    status: ItemStatus,
}

/// Reads a call whose arguments are the value of `text_key`.
fn read_call(node: &Node<'_, '_>, text_key: &str) -> Result<CallParts, ApiError> {
    let known = ["type", "id", "call_id", "name", text_key, "status", "async", "caller", "namespace"];
    let (mut id, mut call_id, mut name, mut text) = (String::new(), None, None, None);
    let mut namespace = None;
    let mut status = ItemStatus::Completed;
    node.known_members(&known, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "call_id" => call_id = Some(name_of(&value)?),
            "name" => name = Some(name_of(&value)?),
            "namespace" => namespace = Some(name_of(&value)?),
            "status" => status = status_of(&value)?,
            _ if key == text_key => text = Some(text_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(CallParts {
        id,
        call_id: call_id.ok_or_else(missing(node, "call_id"))?,
        name: name.ok_or_else(missing(node, "name"))?,
        namespace,
        text: text.ok_or_else(missing(node, text_key))?,
        status,
    })
}

fn read_output(node: &Node<'_, '_>) -> Result<CallOutput, ApiError> {
    const KEYS: &[&str] = &["type", "id", "call_id", "output", "status", "caller", "name", "namespace"];
    let (mut id, mut call_id, mut output) = (String::new(), None, None);
    let mut status = ItemStatus::Completed;
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "call_id" => call_id = Some(name_of(&value)?),
            "status" => status = status_of(&value)?,
            "output" if value.json_type() == JsonType::String => {
                output = Some(Output::Text(text_of(&value)?))
            }
            "output" => output = Some(Output::Parts(read_content(&value, false)?)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(CallOutput {
        id,
        call_id: call_id.ok_or_else(missing(node, "call_id"))?,
        output: output.ok_or_else(missing(node, "output"))?,
        status,
    })
}

fn read_compaction(node: &Node<'_, '_>) -> Result<Compaction, ApiError> {
    let (mut id, mut content) = (String::new(), None);
    node.known_members(&["type", "id", "encrypted_content", "created_by"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "encrypted_content" => content = Some(text_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    let encrypted_content = content.ok_or_else(missing(node, "encrypted_content"))?;
    Ok(Compaction { id, encrypted_content })
}

fn read_reference(node: &Node<'_, '_>) -> Result<Entry, ApiError> {
    let mut id = None;
    node.known_members(&["type", "id"], |key, value| {
        if key == "id" {
            id = Some(name_of(&value)?);
        }
        Ok(())
    })?;
    Ok(Entry::Reference(id.ok_or_else(missing(node, "type"))?))
}
