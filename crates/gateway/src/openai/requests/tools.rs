//! The tools that a conversation offers: names, schemas, limits. Does not know how models call them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::openai::error::{ApiError, echo};
use crate::openai::json::{JsonType, MAX_TREE_VALUES, Node, TreeBudget};

/// Most tools of a request.
pub const MAX_TOOLS: usize = 128;

/// Most bytes of the description of a function or a schema.
pub(super) const MAX_DESCRIPTION_BYTES: usize = 64 << 10;

/// Keys of a function; the last two describe its answer, in what transformers makes of Python functions and in
/// Gemma's form.
const FUNCTION_KEYS: &[&str] = &["name", "description", "parameters", "strict", "return", "response"];

/// Reads `tools` as the trees that chat templates walk, taken from `budget`.
///
/// # Errors
/// A 400 that names the path.
pub fn read_tools(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Vec<Value>, ApiError> {
    let mut names = BTreeSet::new();
    let mut tools = Vec::new();
    node.elements(MAX_TOOLS, |_, tool| {
        let (mut kind, mut name) = (None, None);
        tool.known_members(&["type", "function"], |key, value| {
            match key {
                _ if value.is_null() => {}
                "type" => kind = Some(value.one_of(&["function"])?),
                _ => name = Some(read_function(&value)?),
            }
            Ok(())
        })?;
        if kind.is_none() {
            return Err(ApiError::missing_required_parameter(tool.path_of("type")));
        }
        let name = name.ok_or_else(|| ApiError::missing_required_parameter(tool.path_of("function")))?;
        if !names.insert(name) {
            return Err(ApiError::duplicate_name(tool.path_of("function.name")));
        }
        Ok(())
    })?;
    budget.take_tree(node)?;
    node.elements(MAX_TOOLS, |_, tool| {
        tools.push(tool.tree()?);
        Ok(())
    })?;
    Ok(tools)
}

/// Checks a function and gives its name.
fn read_function(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let mut name = None;
    node.known_members(FUNCTION_KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "name" => name = Some(read_name(&value)?),
            "description" => drop(value.string(MAX_DESCRIPTION_BYTES)?),
            "parameters" => check_parameters(&value)?,
            "strict" => drop(value.boolean()?),
            _ => {}
        }
        Ok(())
    })?;
    name.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("name")))
}

fn read_name(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let name = node.string(usize::MAX)?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        let message = format!(
            "Invalid '{}': '{}' is not 1 to 64 letters, digits, underscores and hyphens.",
            node.path(),
            echo(&name)
        );
        return Err(ApiError::invalid_value(node.path(), message));
    }
    Ok(name.into_owned())
}

/// Parameters are the JSON Schema of an object; what is in it is the grammar's business.
fn check_parameters(node: &Node<'_, '_>) -> Result<(), ApiError> {
    let refuse = |reason| Err(ApiError::invalid_function_parameters(node.path(), reason));
    if node.json_type() != JsonType::Object {
        return refuse("expected a JSON Schema object.");
    }
    node.check_complexity(MAX_TREE_VALUES)?;
    let Value::Object(schema) = node.tree()? else {
        return refuse("expected a JSON Schema object.");
    };
    match schema.get("type") {
        None => {}
        Some(Value::String(kind)) if kind == "object" => {}
        Some(_) => return refuse("the schema's 'type' must be 'object'."),
    }
    if schema.get("properties").is_some_and(|properties| !properties.is_object()) {
        return refuse("'properties' must be an object.");
    }
    let is_name_list = |v: &Value| v.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if schema.get("required").is_some_and(|required| !is_name_list(required)) {
        return refuse("'required' must be an array of strings.");
    }
    Ok(())
}
