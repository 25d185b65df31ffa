//! The tool calls in a conversation. Does not know which tools are offered.

use crate::error::ApiError;
use crate::json::{Node, TreeBudget};
use crate::spec::{MAX_NAME_BYTES, ToolCall};

/// Maximum number of tool calls in a message.
const MAX_TOOL_CALLS: usize = 128;

/// Values in a template's tree for a call without its arguments.
const VALUES_OF_A_CALL: usize = 5;

/// Reads `tool_calls`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_tool_calls(
    node: &Node<'_, '_>,
    budget: &mut TreeBudget,
) -> Result<Vec<ToolCall>, ApiError> {
    let mut calls: Vec<ToolCall> = Vec::new();
    node.elements(MAX_TOOL_CALLS, |_, call| {
        budget.take(VALUES_OF_A_CALL, &call)?;
        let read = read_call(&call, budget)?;
        if calls.iter().any(|other| other.id == read.id) {
            let reason = "Two calls of one message cannot have the same id.";
            return Err(ApiError::invalid_value(call.path_of("id"), reason));
        }
        calls.push(read);
        Ok(())
    })?;
    Ok(calls)
}

fn read_call(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<ToolCall, ApiError> {
    let (mut id, mut function) = (None, None);
    // `index` comes from streamed fragments, which clients merge and send back; the last two are other
    // servers' keys.
    const KEYS: &[&str] = &["id", "type", "function", "index", "extra_content", "provider_specific_fields"];
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "type" => drop(value.one_of(&["function"])?),
            "function" => function = Some(read_called_function(&value, budget)?),
            _ => {}
        }
        Ok(())
    })?;
    let id = id.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("id")))?;
    let (name, arguments) =
        function.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("function")))?;
    Ok(ToolCall { id, name, arguments })
}

fn read_called_function(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<(String, String), ApiError> {
    let (mut name, mut arguments) = (None, None);
    // OpenAI's library adds the parsed arguments beside their text; only the text is used.
    node.known_members(&["name", "arguments", "parsed_arguments"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "name" => name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "arguments" => {
                let text = value.string(usize::MAX)?;
                budget.take_text(&text, &value)?;
                arguments = Some(text.into_owned());
            }
            _ => {}
        }
        Ok(())
    })?;
    let name = name.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("name")))?;
    Ok((name, arguments.unwrap_or_default()))
}
