//! The tools offered in a conversation: names, schemas, limits. Does not know how models call them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::json::{Node, TreeBudget};
use crate::spec::{MAX_TOOLS, read_function};

/// Keys of a function. The last two describe its result: in schemas that transformers makes from Python
/// functions, and in Gemma's form.
const FUNCTION_KEYS: &[&str] = &["name", "description", "parameters", "strict", "return", "response"];

/// Keys of a tool whose function is not nested, as in OpenAI's Responses API and in Anthropic's. Some
/// clients send this form here. The last key is Anthropic's name of the parameters.
const FLAT_KEYS: &[&str] = &["type", "name", "description", "parameters", "strict", "input_schema"];

/// Reads `tools` into the trees that chat templates walk, taken from `budget`. The trees have only known
/// keys: any other would reach the prompt.
///
/// # Errors
/// A 400 that names the path.
pub fn read_tools(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Vec<Value>, ApiError> {
    let mut names = BTreeSet::new();
    node.elements(MAX_TOOLS, |_, tool| {
        let is_flat = is_flat(&tool)?;
        let name = if is_flat { read_flat(&tool)? } else { read_tool(&tool)? };
        if !names.insert(name) {
            let key = if is_flat { "name" } else { "function.name" };
            return Err(ApiError::duplicate_name(tool.path_of(key)));
        }
        Ok(())
    })?;
    budget.take_tree(node)?;
    let mut tools = Vec::new();
    node.elements(MAX_TOOLS, |_, tool| {
        tools.push(tidied(tool.exact_tree()?));
        Ok(())
    })?;
    Ok(tools)
}

/// Whether a tool's function is not nested in it. Strict servers refuse this form.
fn is_flat(tool: &Node<'_, '_>) -> Result<bool, ApiError> {
    let (mut has_function, mut has_name) = (false, false);
    tool.members(usize::MAX, |key, value| {
        has_function |= key == "function" && !value.is_null();
        has_name |= key == "name" && !value.is_null();
        Ok(())
    })?;
    Ok(has_name && !has_function && !tool.is_strict())
}

fn read_tool(tool: &Node<'_, '_>) -> Result<String, ApiError> {
    let (mut kind, mut name) = (None, None);
    tool.known_members(&["type", "function"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => kind = Some(value.one_of(&["function"])?),
            _ => name = Some(read_function(&value, FUNCTION_KEYS)?),
        }
        Ok(())
    })?;
    if kind.is_none() {
        return Err(ApiError::missing_required_parameter(tool.path_of("type")));
    }
    name.ok_or_else(|| ApiError::missing_required_parameter(tool.path_of("function")))
}

/// Reads a tool without a nested function. The type may be absent, since Anthropic's form has none.
fn read_flat(tool: &Node<'_, '_>) -> Result<String, ApiError> {
    tool.members(usize::MAX, |key, value| match key {
        "type" if !value.is_null() => value.one_of(&["function"]).map(drop),
        _ => Ok(()),
    })?;
    read_function(tool, FLAT_KEYS)
}

/// A tool in the form of templates: only known keys, in their usual order.
fn tidied(tool: Value) -> Value {
    let Value::Object(mut tool) = tool else { return tool };
    if let Some(Value::Object(function)) = tool.get_mut("function") {
        function.retain(|key, _| FUNCTION_KEYS.contains(&key.as_str()));
        tool.retain(|key, _| matches!(key.as_str(), "type" | "function"));
        return Value::Object(tool);
    }
    Value::Object(Map::from_iter([
        ("type".to_owned(), "function".into()),
        ("function".to_owned(), Value::Object(flat_function(tool))),
    ]))
}

fn flat_function(tool: Map<String, Value>) -> Map<String, Value> {
    let known = tool.into_iter().filter_map(|(key, value)| match key.as_str() {
        "input_schema" => Some(("parameters".to_owned(), value)),
        "name" | "description" | "parameters" | "strict" => Some((key, value)),
        _ => None,
    });
    known.filter(|(_, value)| !value.is_null()).collect()
}
