//! Messages and their blocks of content, as neutral messages.

use crate::cache_hints::read_cache_control;
use crate::error::ApiError;
use crate::image_source::{of_base64, read_url};
use crate::json::{JsonType, Node, TreeBudget};
use crate::spec::{
    CachePoint, ContentPart, ImagePart, ImageSource, MAX_MESSAGES, MAX_NAME_BYTES, MAX_PARTS, Message, Role,
    ToolCall,
};

/// Types of content blocks. The first seven are read, images where a model takes them; the others contain no
/// text, or belong to tools that run on Anthropic's servers.
const BLOCKS: &[&str] = &[
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "mid_conv_system",
    "image",
    "document",
    "search_result",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "tool_reference",
    "container_upload",
];
const N_READ_BLOCKS: usize = 7;
const ROLES: &[&str] = &["user", "assistant", "system"];
/// Values in a template's tree for a call without its arguments.
const VALUES_OF_A_CALL: usize = 5;

/// Neutral messages, with the places of `cache_control`.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub messages: Vec<Message>,
    pub points: Vec<CachePoint>,
}

/// Reads `messages` into neutral messages; each tool result becomes a message of its own.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_turns(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Turns, ApiError> {
    let mut turns = Turns::default();
    node.elements(MAX_MESSAGES, |_, element| read_turn(&element, budget, &mut turns))?;
    if turns.messages.is_empty() { Err(ApiError::empty_array(node.path())) } else { Ok(turns) }
}

/// Reads `system`, as a conversation of one message.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_system(node: &Node<'_, '_>) -> Result<Turns, ApiError> {
    let mut blocks = Blocks::default();
    blocks.read(node, &mut TreeBudget::default())?;
    if blocks.has_only_text() {
        let points = blocks.marks.iter().map(|mark| mark.point(0, 1, &blocks.text)).collect();
        let has_text = !blocks.text.is_empty();
        let messages = has_text.then(|| Message::new(Role::System, blocks.text)).into_iter().collect();
        Ok(Turns { messages, points })
    } else {
        Err(ApiError::invalid_value(node.path(), "A system prompt has only blocks of text."))
    }
}

fn read_turn(node: &Node<'_, '_>, budget: &mut TreeBudget, turns: &mut Turns) -> Result<(), ApiError> {
    let Turns { messages, points } = turns;
    let (mut role, mut blocks) = (None, None);
    budget.take(3, node)?;
    node.known_members(&["role", "content"], |key, value| {
        match key {
            "role" => role = Some(value.one_of(ROLES)?),
            _ => {
                let mut read = Blocks::default();
                read.read(&value, budget)?;
                blocks = Some(read);
            }
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    let role = ROLES[role.ok_or_else(|| missing("role"))?];
    let Blocks { text, thinking, calls, results, marks } = blocks.ok_or_else(|| missing("content"))?;
    let misplaced = |what: &str, where_: &str| {
        let reason = format!("Only messages of the {where_} have blocks of the type '{what}'.");
        Err(ApiError::invalid_value(node.path_of("content"), reason))
    };
    if role != "assistant" && !calls.is_empty() {
        return misplaced("tool_use", "assistant");
    }
    if role != "user" && !results.is_empty() {
        return misplaced("tool_result", "user");
    }
    let n_before = messages.len();
    messages.extend(results);
    // A message with only tool results adds no text.
    let adds_none =
        role == "user" && text.is_empty() && messages.last().is_some_and(|last| last.role == Role::Tool);
    let n_messages = messages.len() + usize::from(!adds_none);
    points.extend(marks.iter().map(|mark| mark.point(n_before, n_messages, &text)));
    match role {
        "assistant" => {
            let reasoning = (!thinking.is_empty()).then(|| thinking.join("\n"));
            let content = (!text.is_empty() || (calls.is_empty() && reasoning.is_none())).then_some(text);
            let message =
                Message { tool_calls: calls, reasoning, ..Message::new(Role::Assistant, Vec::new()) };
            messages.push(Message { content, ..message });
        }
        "system" => messages.push(Message::new(Role::System, text)),
        _ if adds_none => {}
        _ => messages.push(Message::new(Role::User, text)),
    }
    Ok(())
}

/// The content blocks of a message.
#[derive(Debug, Default)]
struct Blocks {
    text: Vec<ContentPart>,
    thinking: Vec<String>,
    calls: Vec<ToolCall>,
    results: Vec<Message>,
    marks: Vec<Mark>,
}

/// A `cache_control` of a block.
#[derive(Debug)]
struct Mark {
    keep_s: u32,
    /// Number of parts of text, of results, and of other blocks of the message up to this block.
    n_parts: usize,
    n_results: usize,
    n_others: usize,
}

impl Mark {
    /// The place behind the block, in a message of these parts, or in one of the results that follow the
    /// first `n_before` messages. There are `n_messages` with the message of the block.
    fn point(&self, n_before: usize, n_messages: usize, parts: &[ContentPart]) -> CachePoint {
        let Self { keep_s, n_parts, n_results, n_others } = *self;
        if n_parts == 0 && n_others == 0 {
            return CachePoint { n_messages: n_before + n_results, within: None, keep_s };
        }
        // Calls and thoughts are behind all parts.
        CachePoint::behind(n_messages, parts, if n_others == 0 { n_parts } else { usize::MAX }, keep_s)
    }
}

impl Blocks {
    fn has_only_text(&self) -> bool {
        self.thinking.is_empty() && self.calls.is_empty() && self.results.is_empty()
    }

    /// Reads a string, or a list of blocks.
    fn read(&mut self, node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<(), ApiError> {
        match node.json_type() {
            JsonType::String => {
                self.text.push(ContentPart::Text(node.string(usize::MAX)?.into_owned()));
                Ok(())
            }
            JsonType::Array => node.elements(MAX_PARTS, |_, block| self.read_block(&block, budget)),
            _ => Err(node.wrong_type("a string or an array of blocks")),
        }
    }

    fn read_block(&mut self, node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<(), ApiError> {
        let (mut kind, mut keep_s) = (None, None);
        node.members(usize::MAX, |key, value| match key {
            "type" => value.put(&mut kind, value.one_of(BLOCKS)?),
            "cache_control" => {
                keep_s = read_cache_control(&value)?;
                Ok(())
            }
            _ => Ok(()),
        })?;
        let kind = kind.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("type")))?;
        if kind >= N_READ_BLOCKS || (BLOCKS[kind] == "image" && !node.takes_images()) {
            let reason = format!("Blocks of the type '{}' are not supported: only text is.", BLOCKS[kind]);
            return Err(ApiError::unsupported_parameter(node.path(), &reason));
        }
        match BLOCKS[kind] {
            "thinking" => self.thinking.push(text_of(node, "thinking")?),
            // Only the model that wrote it can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                budget.take(VALUES_OF_A_CALL, node)?;
                let call = read_call(node, budget)?;
                if self.calls.iter().any(|other| other.id == call.id) {
                    let reason = "Two calls of one message cannot have the same id.";
                    return Err(ApiError::invalid_value(node.path_of("id"), reason));
                }
                self.calls.push(call);
            }
            "tool_result" => {
                budget.take(3, node)?;
                let (result, keep_within_s) = read_result(node)?;
                self.results.push(result);
                keep_s = keep_s.max(keep_within_s);
            }
            "image" => self.text.push(ContentPart::Image(Box::new(read_image(node)?))),
            _ => self.text.push(ContentPart::Text(text_of(node, "text")?)),
        }
        if let Some(keep_s) = keep_s {
            let n_others = self.thinking.len() + self.calls.len();
            self.marks.push(Mark {
                keep_s,
                n_parts: self.text.len(),
                n_results: self.results.len(),
                n_others,
            });
        }
        Ok(())
    }
}

/// Reads a block of an image: `source` is a file in base64, or a URL.
fn read_image(node: &Node<'_, '_>) -> Result<ImagePart, ApiError> {
    let mut source = None;
    node.known_members(&["type", "source", "cache_control"], |key, value| {
        if key == "source" {
            source = Some(read_source(&value)?);
        }
        Ok(())
    })?;
    let source = source.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("source")))?;
    Ok(ImagePart { source, detail: None, param: node.path() })
}

fn read_source(node: &Node<'_, '_>) -> Result<ImageSource, ApiError> {
    const TYPES: &[&str] = &["base64", "url"];
    const MEDIA_TYPES: &[&str] = &["image/jpeg", "image/png", "image/gif", "image/webp"];
    let (mut kind, mut media_type, mut data, mut url) = (None, None, None, None);
    node.known_members(&["type", "media_type", "data", "url"], |key, value| {
        match key {
            "type" => kind = Some(value.one_of(TYPES)?),
            _ if value.is_null() => {}
            "media_type" => media_type = Some(MEDIA_TYPES[value.one_of(MEDIA_TYPES)?]),
            "data" => data = Some(value.string(usize::MAX)?),
            _ => url = Some(read_url(&value)?),
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    if TYPES[kind.ok_or_else(|| missing("type"))?] == "url" {
        return url.ok_or_else(|| missing("url"));
    }
    let media_type = media_type.ok_or_else(|| missing("media_type"))?;
    let data = data.ok_or_else(|| missing("data"))?;
    of_base64(media_type, &data).ok_or_else(|| ApiError::invalid_image(node.path_of("data")))
}

/// The string under `key` of a block.
fn text_of(node: &Node<'_, '_>, key: &str) -> Result<String, ApiError> {
    let mut text = None;
    node.known_members(&["type", key, "cache_control", "citations", "signature"], |name, value| {
        if name == key {
            text = Some(value.string(usize::MAX)?.into_owned());
        }
        Ok(())
    })?;
    text.ok_or_else(|| ApiError::missing_required_parameter(node.path_of(key)))
}

fn read_call(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<ToolCall, ApiError> {
    const KEYS: &[&str] = &["type", "id", "name", "input", "cache_control", "caller", "toolset_name"];
    let (mut id, mut name, mut input) = (None, None, None);
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "name" => name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "input" if value.json_type() == JsonType::Object => {
                budget.take_tree(&value)?;
                input = Some(value.text().to_owned());
            }
            "input" => return Err(value.wrong_type("an object")),
            _ => {}
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    Ok(ToolCall {
        id: id.ok_or_else(|| missing("id"))?,
        name: name.ok_or_else(|| missing("name"))?,
        arguments: input.ok_or_else(|| missing("input"))?,
    })
}

/// Reads the result of a call, with the longest time of `cache_control` within it.
fn read_result(node: &Node<'_, '_>) -> Result<(Message, Option<u32>), ApiError> {
    const KEYS: &[&str] = &["type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"];
    let (mut id, mut content, mut keep_s) = (None, Vec::new(), None);
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "tool_use_id" => id = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "content" => {
                let mut blocks = Blocks::default();
                blocks.read(&value, &mut TreeBudget::default())?;
                if !blocks.has_only_text() {
                    let reason = "The result of a tool has only blocks of text.";
                    return Err(ApiError::unsupported_parameter(value.path(), reason));
                }
                content = blocks.text;
                keep_s = blocks.marks.iter().map(|mark| mark.keep_s).max();
            }
            "is_error" => drop(value.boolean()?),
            _ => {}
        }
        Ok(())
    })?;
    let id = id.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("tool_use_id")))?;
    Ok((Message { tool_call_id: Some(id), ..Message::new(Role::Tool, content) }, keep_s))
}
