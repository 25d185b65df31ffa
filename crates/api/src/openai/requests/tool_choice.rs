//! `tool_choice`: whether the model may, must or must not call tools, and which ones. Does not know how
//! calls are enforced.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::ApiError;
use crate::json::{JsonType, Node};
use crate::spec::{Conversation, MAX_NAME_BYTES, MAX_TOOLS};

/// String values of `tool_choice` in OpenAI's documentation.
pub(super) const TOOL_CHOICES: &[&str] = &["none", "auto", "required"];

/// String values including Mistral's and Anthropic's `any` for `required`, which strict servers refuse.
const MORE_CHOICES: &[&str] = &["none", "auto", "required", "any"];

/// Types of `tool_choice` objects. Strict servers accept only the first.
const TYPES: &[&str] = &["function", "allowed_tools", "none", "auto", "required", "any"];

/// Whether the model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallMode {
    /// The model must call no tool.
    Never,
    /// The model may call tools.
    Auto,
    /// The model must call a tool.
    Required,
}

/// Value of `tool_choice`.
#[derive(Debug)]
pub(super) struct ToolChoice {
    /// Whether the model calls tools.
    pub mode: CallMode,
    /// Name of the only allowed function.
    pub function: Option<String>,
    /// Names of the allowed functions, each with its path in the request.
    allowed: Option<Vec<(String, String)>>,
}

impl From<CallMode> for ToolChoice {
    fn from(mode: CallMode) -> Self {
        Self { mode, function: None, allowed: None }
    }
}

impl CallMode {
    fn of(word: &str) -> Self {
        match word {
            "none" => Self::Never,
            "auto" => Self::Auto,
            _ => Self::Required,
        }
    }
}

impl ToolChoice {
    /// Checks the choice against the offered tools.
    pub fn check(&self, conversation: &Conversation) -> Result<(), ApiError> {
        let needs_tool = self.mode == CallMode::Required;
        let is_missing =
            if needs_tool { conversation.tools.is_empty() } else { !conversation.has_tools_parameter };
        if is_missing {
            let reason = "'tool_choice' is only allowed when 'tools' are given.";
            return Err(ApiError::invalid_value("tool_choice", reason));
        }
        let is_offered = |name: &str| conversation.tools.iter().any(|tool| name_of(tool) == name);
        let chosen = self.function.iter().map(|name| ("tool_choice.function.name", name));
        let allowed = self.allowed.iter().flatten().map(|(name, path)| (path.as_str(), name));
        match chosen.chain(allowed).find(|(_, name)| !is_offered(name)) {
            Some((path, _)) => {
                let reason = "'tool_choice' names a function that is not among the 'tools'.";
                Err(ApiError::invalid_value(path, reason))
            }
            None => Ok(()),
        }
    }

    /// Removes the tools that the choice does not allow.
    pub fn keep_allowed(&self, conversation: &mut Conversation) {
        if let Some(allowed) = &self.allowed {
            let names: BTreeSet<&str> = allowed.iter().map(|(name, _)| name.as_str()).collect();
            conversation.tools.retain(|tool| names.contains(name_of(tool)));
        }
    }
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Reads `tool_choice`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_tool_choice(node: &Node<'_, '_>) -> Result<ToolChoice, ApiError> {
    let (words, types) = match node.is_strict() {
        true => (TOOL_CHOICES, &TYPES[..1]),
        false => (MORE_CHOICES, TYPES),
    };
    if node.json_type() != JsonType::Object {
        let documented = node.one_of(TOOL_CHOICES);
        let choice = documented.or_else(|error| node.one_of(words).map_err(|_| error))?;
        return Ok(CallMode::of(words[choice]).into());
    }
    let mut kind = None;
    node.members(usize::MAX, |key, value| match key {
        "type" if !value.is_null() => value.put(&mut kind, value.one_of(types)?),
        _ => Ok(()),
    })?;
    let kind = kind.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("type")))?;
    match types[kind] {
        "function" => {
            let function = Some(read_function(node)?.0);
            Ok(ToolChoice { mode: CallMode::Required, function, allowed: None })
        }
        "allowed_tools" => read_allowed(node),
        word => {
            node.known_members(&["type"], |_, _| Ok(()))?;
            Ok(CallMode::of(word).into())
        }
    }
}

/// Reads the name of a function from `{"function": {"name": …}}` or, in the form of OpenAI's Responses API,
/// `{"name": …}`. Also returns the path of the name.
fn read_function(node: &Node<'_, '_>) -> Result<(String, String), ApiError> {
    let (mut function, mut flat) = (None, None);
    let keys: &[&str] = if node.is_strict() { &["type", "function"] } else { &["type", "function", "name"] };
    let text = |value: &Node<'_, '_>| -> Result<_, ApiError> {
        Ok((value.string(MAX_NAME_BYTES)?.into_owned(), value.path()))
    };
    node.known_members(keys, |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => drop(value.one_of(&["function"])?),
            "name" => flat = Some(text(&value)?),
            _ => {
                let mut name = None;
                value.known_members(&["name"], |_, value| {
                    if !value.is_null() {
                        name = Some(text(&value)?);
                    }
                    Ok(())
                })?;
                let missing = || ApiError::missing_required_parameter(value.path_of("name"));
                function = Some(name.ok_or_else(missing)?);
            }
        }
        Ok(())
    })?;
    let missing = || ApiError::missing_required_parameter(node.path_of("function"));
    function.or(flat).ok_or_else(missing)
}

/// Reads OpenAI's `allowed_tools`. Its members are in an object of that name or, in the form of the
/// Responses API, beside the type.
fn read_allowed(node: &Node<'_, '_>) -> Result<ToolChoice, ApiError> {
    const KEYS: [&str; 3] = ["type", "mode", "tools"];
    let (mut mode, mut allowed) = (None, None);
    let mut read = |key: &str, value: &Node<'_, '_>| match key {
        "mode" if !value.is_null() => value.put(&mut mode, value.one_of(&["auto", "required"])?),
        "tools" if !value.is_null() => value.put(&mut allowed, read_names(value)?),
        _ => Ok(()),
    };
    node.known_members(&["type", "mode", "tools", "allowed_tools"], |key, value| match key {
        "allowed_tools" if !value.is_null() => value.known_members(&KEYS, |key, value| read(key, &value)),
        _ => read(key, &value),
    })?;
    let missing =
        |key: &str| ApiError::missing_required_parameter(node.path_of(&format!("allowed_tools.{key}")));
    let mode = [CallMode::Auto, CallMode::Required][mode.ok_or_else(|| missing("mode"))?];
    let allowed = Some(allowed.ok_or_else(|| missing("tools"))?);
    Ok(ToolChoice { mode, function: None, allowed })
}

fn read_names(node: &Node<'_, '_>) -> Result<Vec<(String, String)>, ApiError> {
    let mut names = Vec::new();
    node.elements(MAX_TOOLS, |_, tool| {
        names.push(read_function(&tool)?);
        Ok(())
    })?;
    if names.is_empty() { Err(ApiError::empty_array(node.path())) } else { Ok(names) }
}
