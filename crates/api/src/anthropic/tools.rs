//! The tools of a request and `tool_choice`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::cache_hints::read_cache_control;
use crate::error::ApiError;
use crate::json::{Node, TreeBudget};
use crate::spec::{MAX_NAME_BYTES, MAX_TOOLS, read_function};

const KEYS: &[&str] = &[
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
    "allowed_callers",
];

/// Reads `tools` into the trees that chat templates walk, with the longest time of their `cache_control`.
///
/// # Errors
/// A 400 that names the path. Tools that run on Anthropic's servers or that only Anthropic's models support
/// are refused by name.
pub(super) fn read_tools(
    node: &Node<'_, '_>,
    budget: &mut TreeBudget,
) -> Result<(Vec<Value>, Option<u32>), ApiError> {
    let (mut names, mut keep_s) = (BTreeSet::new(), None);
    node.elements(MAX_TOOLS, |_, tool| {
        tool.members(usize::MAX, |key, value| match key {
            "cache_control" => {
                keep_s = keep_s.max(read_cache_control(&value)?);
                Ok(())
            }
            "type" if !value.is_null() && value.string(MAX_NAME_BYTES)? != "custom" => {
                let reason = "Only tools of the type 'custom', with an 'input_schema', are supported.";
                Err(ApiError::unsupported_parameter(value.path(), reason))
            }
            _ => Ok(()),
        })?;
        if names.insert(read_function(&tool, KEYS)?) {
            Ok(())
        } else {
            Err(ApiError::duplicate_name(tool.path_of("name")))
        }
    })?;
    budget.take_tree(node)?;
    let mut tools = Vec::new();
    node.elements(MAX_TOOLS, |_, tool| {
        tools.push(for_template(tool.exact_tree()?));
        Ok(())
    })?;
    Ok((tools, keep_s))
}

fn for_template(tool: Value) -> Value {
    let Value::Object(members) = tool else { return tool };
    let known = members.into_iter().filter_map(|(key, value)| match key.as_str() {
        "input_schema" => Some(("parameters".to_owned(), value)),
        "name" | "description" | "strict" => Some((key, value)),
        _ => None,
    });
    let function: Map<String, Value> = known.filter(|(_, value)| !value.is_null()).collect();
    Value::Object(Map::from_iter([
        ("type".to_owned(), "function".into()),
        ("function".to_owned(), Value::Object(function)),
    ]))
}

/// Rules for calling tools.
#[derive(Debug, Default)]
pub(super) struct ToolUse {
    /// Whether the model must not call a tool.
    pub never: bool,
    /// Whether the model must call a tool.
    pub must: bool,
    /// Name of the only allowed tool.
    pub name: Option<String>,
    /// Whether at most one call is allowed.
    pub only_one: bool,
}

/// Reads `tool_choice`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_tool_choice(node: &Node<'_, '_>) -> Result<ToolUse, ApiError> {
    const TYPES: &[&str] = &["auto", "any", "tool", "none"];
    let (mut kind, mut choice) = (None, ToolUse::default());
    node.known_members(&["type", "name", "disable_parallel_tool_use"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => kind = Some(TYPES[value.one_of(TYPES)?]),
            "name" => choice.name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            _ => choice.only_one = value.boolean()?,
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    match kind.ok_or_else(|| missing("type"))? {
        "tool" if choice.name.is_none() => return Err(missing("name")),
        "tool" | "any" => choice.must = true,
        "none" => choice.never = true,
        _ => {}
    }
    if kind != Some("tool") {
        choice.name = None;
    }
    Ok(choice)
}

impl ToolUse {
    /// Checks the choice against the offered tools.
    pub fn check(&self, tools: &[Value]) -> Result<(), ApiError> {
        if self.must && tools.is_empty() {
            let reason = "'tool_choice' is only allowed when 'tools' are given.";
            return Err(ApiError::invalid_value("tool_choice", reason));
        }
        match &self.name {
            Some(name) if !tools.iter().any(|tool| tool["function"]["name"] == **name) => {
                let reason = "'tool_choice' names a tool that is not among the 'tools'.";
                Err(ApiError::invalid_value("tool_choice.name", reason))
            }
            _ => Ok(()),
        }
    }
}
