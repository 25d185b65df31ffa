//! The body of `POST /v1/chat/completions`. Does not know how a conversation becomes tokens.

use super::conversation::CONVERSATION_FIELDS;
use super::generation_fields::{GENERATION_FIELDS, IGNORED, UNSUPPORTED};
use super::generation_values::{is_empty, is_false};
use super::tool_choice::{CallMode, TOOL_CHOICES, ToolChoice, read_tool_choice};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Hint, Integer, Refused};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::spec::{ChatInput, Conversation, GenerationOptions, GenerationSpec, Input, ParamNames};

/// The parameters that only chat completions have.
#[derive(Debug, Default)]
pub struct ChatOptions {
    max_completion_tokens: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    tool_choice: Option<ToolChoice>,
    parallel_tool_calls: Option<bool>,
    include_reasoning: Option<bool>,
}

/// The parameters that only chat completions have.
pub const CHAT_FIELDS: &[Field<ChatOptions>] = &[
    field(
        "max_completion_tokens",
        Integer(0, i32::MAX as i64, |o| &mut o.max_completion_tokens),
        "The most tokens to generate; what is left of the context unless said.",
    ),
    field(
        "logprobs",
        Boolean(|o| &mut o.logprobs),
        "Report the log-probability of each token of the answer; false unless said.",
    ),
    field(
        "top_logprobs",
        Integer(-1, i32::MAX as i64, |o| &mut o.top_logprobs),
        "Report this many of the most likely tokens beside each; -1: all. Needs logprobs.",
    ),
    field(
        "tool_choice",
        Custom(Shape::AnyOf(&[Shape::Choice(TOOL_CHOICES), Shape::Object]), |o, node, _| {
            o.tool_choice = Some(read_tool_choice(node)?);
            Ok(())
        }),
        "Whether the model may, must or must not call tools: auto, required, none, a function to call, or allowed_tools.",
    ),
    field(
        "parallel_tool_calls",
        Boolean(|o| &mut o.parallel_tool_calls),
        "Whether an answer may have several calls; false gives only the first. true unless said.",
    ),
    field(
        "include_reasoning",
        Boolean(|o| &mut o.include_reasoning),
        "Whether the answer shows the model's reasoning; true unless said.",
    ),
    field("functions", Refused(Shape::Array(128, &Shape::Object), is_empty), UNSUPPORTED),
    field(
        "function_call",
        Refused(Shape::Any, |node| matches!(node.text(), r#""none""# | r#""auto""#)),
        UNSUPPORTED,
    ),
    field(
        "modalities",
        Refused(Shape::Array(8, &Shape::Text(32)), |node| {
            node.elements(8, |_, kind| kind.one_of(&["text"]).map(drop)).is_ok()
        }),
        "Only [\"text\"] is accepted.",
    ),
    field("audio", Refused(Shape::Object, is_empty), UNSUPPORTED),
    field("prediction", Hint(Shape::Object, is_empty), IGNORED),
    field("web_search_options", Refused(Shape::Object, |_| false), UNSUPPORTED),
    field(
        "verbosity",
        Hint(Shape::Choice(&["low", "medium", "high"]), |node| node.text() == r#""medium""#),
        IGNORED,
    ),
    field("echo", Refused(Shape::Boolean, is_false), UNSUPPORTED),
];

/// Reads and checks the body of a chat completion.
///
/// # Errors
/// A 400 that names the parameter.
pub fn parse(body: &[u8], options: &ReadOptions) -> Result<GenerationSpec, ApiError> {
    let names = ParamNames { prompt: "messages", logprobs: "top_logprobs", ..ParamNames::default() };
    let mut generation = GenerationOptions { names, ..GenerationOptions::default() };
    let mut conversation = Conversation::default();
    let mut own = ChatOptions::default();
    let ignored = read_body(
        body,
        &mut [
            &mut Bound { fields: CONVERSATION_FIELDS, target: &mut conversation },
            &mut Bound { fields: GENERATION_FIELDS, target: &mut generation },
            &mut Bound { fields: CHAT_FIELDS, target: &mut own },
        ],
        options,
    )?;
    generation.settle(ignored, options);
    generation.names.max_tokens = own.resolve_max_tokens(&mut generation)?;
    if generation.model.is_some() && conversation.messages.is_empty() {
        return Err(ApiError::missing_required_parameter("messages"));
    }
    generation.check_together(false)?;
    conversation.check_together()?;
    generation.logprobs = own.n_alternatives()?;
    let choice = own.tool_choice.take();
    if let Some(choice) = &choice {
        choice.check(&conversation)?;
        choice.keep_allowed(&mut conversation);
    }
    let mode = choice.as_ref().map(|choice| choice.mode);
    generation.ignored.extend(&std::mem::take(&mut conversation.ignored));
    conversation.calls_no_tools = mode == Some(CallMode::Never);
    let input = ChatInput {
        calls_tools: !conversation.tools.is_empty() && !conversation.calls_no_tools,
        only_first_call: own.parallel_tool_calls == Some(false),
        must_call: mode == Some(CallMode::Required),
        chosen_function: choice.and_then(|choice| choice.function),
        shows_reasoning: own.include_reasoning.unwrap_or(true),
        conversation,
    };
    Ok(GenerationSpec { options: generation, input: Input::Chat(Box::new(input)) })
}

impl ChatOptions {
    /// Merges the two names of one parameter. Returns the name that the client used.
    fn resolve_max_tokens(&self, generation: &mut GenerationOptions) -> Result<&'static str, ApiError> {
        match (generation.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                Err(ApiError::mutually_exclusive("max_tokens", "max_completion_tokens"))
            }
            (None, Some(new)) => {
                generation.max_tokens = Some(new);
                Ok("max_completion_tokens")
            }
            _ => Ok("max_tokens"),
        }
    }

    fn n_alternatives(&self) -> Result<Option<i64>, ApiError> {
        match (self.logprobs, self.top_logprobs) {
            (Some(true), top) => Ok(Some(top.unwrap_or(0))),
            (_, None | Some(0)) => Ok(None),
            (_, Some(_)) => {
                let reason = "'top_logprobs' is only allowed when 'logprobs' is true.";
                Err(ApiError::invalid_value("top_logprobs", reason))
            }
        }
    }
}
