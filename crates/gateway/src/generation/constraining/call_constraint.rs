//! Constraint on answers from a chat's tools: `tool_choice` `required` or a function, and `strict`. Does
//! not know the formats of calls and the enforcement.

use serde_json::{Value, json};
use throng_text::AnswerFormat;
use throng_text::grammar::{CallableTool, ConstraintSpec, ToolCallSpec};

use throng_api::ApiError;
use throng_api::spec::{ChatInput, GenerationOptions, OutputConstraint};

/// Constraint on a chat's answers: its own, or that of its tools. If the model must call a tool,
/// `response_format` has no effect.
///
/// # Errors
/// 400 for a model without a format of calls, and where another parameter constrains the answer too.
pub(in crate::generation) fn output_constraint(
    format: &AnswerFormat,
    options: &GenerationOptions,
    chat: &ChatInput,
) -> Result<Option<OutputConstraint>, ApiError> {
    let own = options.constraint();
    let tools = &chat.conversation.tools;
    let strict = tools.iter().position(is_strict).filter(|_| chat.calls_tools);
    let param = match strict {
        _ if chat.must_call => "tool_choice".to_owned(),
        Some(idx) if own.is_none() => format!("tools[{idx}].function.strict"),
        // The answer has the form that the request asks for, so that nothing in it is a call.
        _ => return Ok(own.cloned()),
    };
    if let Some(own) = own.filter(|own| !matches!(own.param.as_str(), "response_format" | "text.format")) {
        return Err(ApiError::mutually_exclusive(own.param.clone(), &param));
    }
    let Some(format_of_calls) = format.tool_calls else {
        let reason = "This model's chat template has no known format of tool calls.";
        return Err(ApiError::unsupported_by_model(param, reason));
    };
    let chosen = chat.chosen_function.as_deref();
    let tools = tools.iter().filter(|tool| chosen.is_none_or(|name| tool["function"]["name"] == name));
    let spec = ToolCallSpec {
        format: format_of_calls,
        tools: tools.map(|tool| callable(tool, chat.must_call)).collect(),
        must_call: chat.must_call,
        only_one: chat.only_first_call || chosen.is_some(),
        control: format.control_markers().to_vec(),
    };
    Ok(Some(OutputConstraint { param, spec: ConstraintSpec::ToolCalls(spec) }))
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

/// A tool whose arguments satisfy its schema if the model must call or the tool is strict, and are any object
/// otherwise.
fn callable(tool: &Value, must_call: bool) -> CallableTool {
    let function = &tool["function"];
    let arguments = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        schema if must_call || is_strict(tool) => schema.clone(),
        _ => json!({"type": "object"}),
    };
    CallableTool { name: function["name"].as_str().unwrap_or_default().to_owned(), arguments }
}
