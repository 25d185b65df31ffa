//! Items of tools that the server calls, as requests send them back.

use serde::Deserialize as _;

use super::mcp_item::{
    McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools, McpStatus, ToolDefinition,
};
use super::members::{name_of, text_of};
use crate::answer::CallFailure;
use crate::error::ApiError;
use crate::json::{JsonType, Node, TreeBudget};
use crate::spec::{MAX_DESCRIPTION_BYTES, MAX_TOOLS};

const STATUSES: &[&str] = &["in_progress", "completed", "incomplete", "calling", "failed"];

/// Takes a required member.
fn needed<T>(node: &Node<'_, '_>, key: &str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::missing_required_parameter(node.path_of(key)))
}

/// Reads an `mcp_list_tools`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_list(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<McpListTools, ApiError> {
    let (mut id, mut label, mut tools, mut error) = (String::new(), None, Vec::new(), None);
    node.known_members(&["type", "id", "server_label", "tools", "error"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "server_label" => label = Some(name_of(&value)?),
            "tools" => value.elements(MAX_TOOLS, |_, tool| {
                tools.push(read_listed(&tool, budget)?);
                Ok(())
            })?,
            "error" => error = Some(error_of(&value, budget)?.to_string()),
            _ => {}
        }
        Ok(())
    })?;
    Ok(McpListTools { id, server_label: needed(node, "server_label", label)?, tools, error })
}

fn read_listed(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<ToolDefinition, ApiError> {
    budget.take_tree(node)?;
    let (mut name, mut description, mut schema, mut annotations) = (None, None, None, None);
    node.known_members(&["name", "description", "input_schema", "annotations"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "name" => name = Some(name_of(&value)?),
            "description" => description = Some(value.string(MAX_DESCRIPTION_BYTES)?.into_owned()),
            "input_schema" => schema = Some(value.exact_tree()?),
            _ => annotations = Some(value.exact_tree()?),
        }
        Ok(())
    })?;
    Ok(ToolDefinition {
        name: needed(node, "name", name)?,
        description,
        input_schema: needed(node, "input_schema", schema)?,
        annotations,
    })
}

/// Reads an `mcp_call`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_call(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<McpCall, ApiError> {
    const KEYS: &[&str] = &[
        "type",
        "id",
        "server_label",
        "name",
        "arguments",
        "approval_request_id",
        "output",
        "error",
        "status",
    ];
    let (mut id, mut label, mut name, mut arguments) = (String::new(), None, None, None);
    let (mut approval_request_id, mut output, mut error) = (None, None, None);
    let mut status = McpStatus::Completed;
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "server_label" => label = Some(name_of(&value)?),
            "name" => name = Some(name_of(&value)?),
            "arguments" => arguments = Some(text_of(&value)?),
            "approval_request_id" => approval_request_id = Some(name_of(&value)?),
            "output" => output = Some(text_of(&value)?),
            "error" => error = Some(error_of(&value, budget)?),
            "status" => {
                use McpStatus::{Calling, Completed, Failed, InProgress, Incomplete};
                status = [InProgress, Completed, Incomplete, Calling, Failed][value.one_of(STATUSES)?];
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(McpCall {
        id,
        server_label: needed(node, "server_label", label)?,
        name: needed(node, "name", name)?,
        arguments: needed(node, "arguments", arguments)?,
        approval_request_id,
        output,
        error,
        status,
    })
}

/// An error in the library's form, or as a text of older versions.
fn error_of(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<CallFailure, ApiError> {
    if node.json_type() == JsonType::String {
        return Ok(CallFailure::Protocol { code: 0, message: text_of(node)? });
    }
    budget.take_tree(node)?;
    let content = node.tree()?;
    let typed = CallFailure::deserialize(&content);
    Ok(typed.unwrap_or(CallFailure::Execution { content }))
}

/// Reads an `mcp_approval_request`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_approval_request(node: &Node<'_, '_>) -> Result<McpApprovalRequest, ApiError> {
    let (mut id, mut label, mut name, mut arguments) = (None, None, None, None);
    node.known_members(&["type", "id", "server_label", "name", "arguments"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = Some(name_of(&value)?),
            "server_label" => label = Some(name_of(&value)?),
            "name" => name = Some(name_of(&value)?),
            "arguments" => arguments = Some(text_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(McpApprovalRequest {
        id: needed(node, "id", id)?,
        server_label: needed(node, "server_label", label)?,
        name: needed(node, "name", name)?,
        arguments: needed(node, "arguments", arguments)?,
    })
}

/// Reads an `mcp_approval_response`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_approval_response(node: &Node<'_, '_>) -> Result<McpApprovalResponse, ApiError> {
    let (mut id, mut request, mut approve, mut reason) = (String::new(), None, None, None);
    node.known_members(&["type", "id", "approval_request_id", "approve", "reason"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "id" => id = name_of(&value)?,
            "approval_request_id" => request = Some(name_of(&value)?),
            "approve" => approve = Some(value.boolean()?),
            "reason" => reason = Some(text_of(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(McpApprovalResponse {
        id,
        approval_request_id: needed(node, "approval_request_id", request)?,
        approve: needed(node, "approve", approve)?,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use crate::ReadOptions;
    use crate::responses::CreateRequest;

    #[test]
    fn the_error_of_a_call_is_no_larger_than_other_trees() {
        let body = |error: &str| {
            let call = format!(
                r#"{{"type":"mcp_call","id":"mcp_1","server_label":"a","name":"b","arguments":"{{}}","error":{error}}}"#
            );
            format!(r#"{{"model":"m","input":[{{"role":"user","content":"a"}},{call}]}}"#)
        };
        let read = |error: &str| CreateRequest::parse(body(error).as_bytes(), &ReadOptions::default());
        for good in
            [r#""late""#, r#"{"type":"http_error","code":504,"message":"late"}"#, r#"{"other":[1,2]}"#]
        {
            assert!(read(good).is_ok(), "{good}");
        }
        let many = format!("[{}0]", "0,".repeat(1_000_000));
        assert_eq!(read(&many).expect_err("too large").code(), "schema_too_complex");
    }
}
