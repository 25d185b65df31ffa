//! Tools offered in a conversation: names, schemas, limits.

use serde_json::Value;

use crate::error::{ApiError, echo};
use crate::json::{JsonType, MAX_TREE_VALUES, Node};

/// Maximum number of tools of a request.
pub const MAX_TOOLS: usize = 128;
/// Maximum bytes of the description of a function or a schema.
pub const MAX_DESCRIPTION_BYTES: usize = 64 << 10;

/// Checks a function and returns its name.
pub(crate) fn read_function(node: &Node<'_, '_>, keys: &[&str]) -> Result<String, ApiError> {
    let (mut name, mut parameters) = (None, None);
    node.known_members(keys, |key, value| {
        match key {
            _ if value.is_null() => {}
            "name" => name = Some(read_name(&value)?),
            "description" => drop(value.string(MAX_DESCRIPTION_BYTES)?),
            "parameters" | "input_schema" => value.put(&mut parameters, check_parameters(&value)?)?,
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

/// Checks that `parameters` is a JSON Schema of an object; its content is checked when the grammar is
/// compiled.
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
