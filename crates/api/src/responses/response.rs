//! The response object, and the events of a stream.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use throng_core::request::FinishReason;

use super::item::{Content, Item, ItemStatus, Logprob, Thought};
use crate::answer::{ChoiceEnd, Tally};
use crate::error::{ApiError, ErrorType};

/// State of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// A response, as its endpoints return it.
#[derive(Debug, Serialize)]
pub(super) struct ResponseObject<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created_at: u64,
    pub status: Status,
    pub background: bool,
    pub completed_at: Option<u64>,
    pub conversation: Option<Named<'a>>,
    pub error: Option<Failure<'a>>,
    pub incomplete_details: Option<Reason>,
    pub instructions: Option<&'a str>,
    pub max_output_tokens: Option<i64>,
    pub max_tool_calls: Option<i64>,
    pub model: &'a str,
    pub output: &'a [Item],
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<&'a str>,
    pub prompt_cache_key: Option<&'a str>,
    pub reasoning: Effort,
    pub safety_identifier: Option<&'a str>,
    pub service_tier: &'static str,
    pub store: bool,
    pub temperature: f32,
    pub text: Text<'a>,
    pub tool_choice: Choice<'a>,
    pub tools: &'a [Value],
    pub top_logprobs: i64,
    pub top_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub truncation: &'static str,
    pub usage: Option<Usage>,
    pub user: Option<&'a str>,
    pub metadata: Metadata<'a>,
}

/// An object that is named by its id.
#[derive(Debug, Serialize)]
pub(super) struct Named<'a> {
    pub id: &'a str,
}

/// Reason why a response is incomplete.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Reason {
    pub reason: &'static str,
}

/// Effort that the model was asked to spend on reasoning, and the form in which it is shown.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Effort {
    pub effort: Option<&'static str>,
    pub summary: Option<&'static str>,
}

/// The form of the answer.
#[derive(Debug, Serialize)]
pub(super) struct Text<'a> {
    pub format: Format<'a>,
    pub verbosity: &'static str,
}

/// A format, as it was sent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Format<'a> {
    Sent(&'a RawValue),
    Plain { r#type: &'static str },
}

/// The choice of tools, as it was sent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Choice<'a> {
    Sent(&'a RawValue),
    Word(&'static str),
}

/// Metadata, as they were sent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Metadata<'a> {
    Sent(&'a RawValue),
    None {},
}

/// Reason why a response failed.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Failure<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> From<&'a ApiError> for Failure<'a> {
    fn from(error: &'a ApiError) -> Self {
        let code = match error.error_type() {
            // The prompt is not at fault.
            ErrorType::InvalidRequest if error.is_tool_server_unavailable() => "server_error",
            ErrorType::InvalidRequest => "invalid_prompt",
            ErrorType::RateLimit | ErrorType::InsufficientQuota => "rate_limit_exceeded",
            ErrorType::Server => "server_error",
        };
        Self { code, message: error.message() }
    }
}

/// Tokens of a response.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Usage {
    input_tokens: u64,
    input_tokens_details: InputTokens,
    output_tokens: u64,
    output_tokens_details: OutputTokens,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct InputTokens {
    cached_tokens: u64,
    cache_write_tokens: u64,
    /// Number of input tokens of images; absent without images.
    #[serde(skip_serializing_if = "Option::is_none")]
    image_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputTokens {
    reasoning_tokens: u64,
}

impl From<&Tally> for Usage {
    fn from(tally: &Tally) -> Self {
        Self {
            input_tokens: tally.prompt,
            input_tokens_details: InputTokens {
                cached_tokens: tally.cached,
                cache_write_tokens: 0,
                image_tokens: (tally.images > 0).then_some(tally.images),
            },
            output_tokens: tally.output,
            output_tokens_details: OutputTokens { reasoning_tokens: tally.reasoning },
            total_tokens: tally.prompt + tally.output,
        }
    }
}

/// State of a response, with the reason why it is incomplete and the error with which it failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing<'a> {
    pub status: Status,
    pub reason: Option<&'static str>,
    pub failure: Option<&'a ApiError>,
}

impl<'a> Standing<'a> {
    pub const RUNNING: Self = Self { status: Status::InProgress, reason: None, failure: None };

    pub fn at(end: Option<&ChoiceEnd>) -> Self {
        let reason = end.and_then(|end| match end.reason {
            _ if end.is_filtered => Some("content_filter"),
            FinishReason::Length => Some("max_output_tokens"),
            _ => None,
        });
        let status = if reason.is_some() { Status::Incomplete } else { Status::Completed };
        Self { status, reason, failure: None }
    }

    pub fn failed(error: &'a ApiError) -> Self {
        Self { status: Status::Failed, reason: None, failure: Some(error) }
    }

    /// The status of an item that is open at the end.
    pub fn of_last_item(self) -> ItemStatus {
        if self.status == Status::Completed { ItemStatus::Completed } else { ItemStatus::Incomplete }
    }
}

/// An event with its number.
#[derive(Debug, Serialize)]
pub(super) struct Numbered<'e, 'a> {
    #[serde(flatten)]
    pub event: &'e Event<'a>,
    pub sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<&'e str>,
}

/// Position of a streamed event within a response.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Place<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
}

/// A part of an item in an event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Part<'a> {
    Content(&'a Content),
    Thought(&'a Thought),
}

/// An event of a stream; its name is its type.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum Event<'a> {
    #[serde(rename = "response.created")]
    Created { response: ResponseObject<'a> },
    #[serde(rename = "response.in_progress")]
    InProgress { response: ResponseObject<'a> },
    #[serde(rename = "response.completed")]
    Completed { response: ResponseObject<'a> },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: ResponseObject<'a> },
    #[serde(rename = "response.failed")]
    Failed { response: ResponseObject<'a> },
    #[serde(rename = "error")]
    Error { code: &'static str, message: &'a str, param: Option<&'a str> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: &'a Item },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: &'a Item },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        part: Part<'a>,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        part: Part<'a>,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        delta: &'a str,
        logprobs: &'a [Logprob],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        text: &'a str,
        logprobs: &'a [Logprob],
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        delta: &'a str,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        text: &'a str,
    },
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPartAdded {
        #[serde(flatten)]
        place: Place<'a>,
        summary_index: usize,
        part: Part<'a>,
    },
    #[serde(rename = "response.reasoning_summary_part.done")]
    SummaryPartDone {
        #[serde(flatten)]
        place: Place<'a>,
        summary_index: usize,
        part: Part<'a>,
    },
    #[serde(rename = "response.reasoning_summary_text.delta")]
    SummaryDelta {
        #[serde(flatten)]
        place: Place<'a>,
        summary_index: usize,
        delta: &'a str,
    },
    #[serde(rename = "response.reasoning_summary_text.done")]
    SummaryDone {
        #[serde(flatten)]
        place: Place<'a>,
        summary_index: usize,
        text: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        #[serde(flatten)]
        place: Place<'a>,
        name: &'a str,
        arguments: &'a str,
    },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        #[serde(flatten)]
        place: Place<'a>,
        input: &'a str,
    },
    #[serde(rename = "response.mcp_list_tools.in_progress")]
    McpListInProgress {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.mcp_list_tools.completed")]
    McpListCompleted {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.mcp_list_tools.failed")]
    McpListFailed {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.mcp_call_arguments.delta")]
    McpArgumentsDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.mcp_call_arguments.done")]
    McpArgumentsDone {
        #[serde(flatten)]
        place: Place<'a>,
        arguments: &'a str,
    },
    #[serde(rename = "response.mcp_call.in_progress")]
    McpCallInProgress {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.mcp_call.completed")]
    McpCallCompleted {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.mcp_call.failed")]
    McpCallFailed {
        #[serde(flatten)]
        place: Place<'a>,
    },
}

impl Event<'_> {
    /// The name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
            Self::Error { .. } => "error",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::SummaryPartAdded { .. } => "response.reasoning_summary_part.added",
            Self::SummaryPartDone { .. } => "response.reasoning_summary_part.done",
            Self::SummaryDelta { .. } => "response.reasoning_summary_text.delta",
            Self::SummaryDone { .. } => "response.reasoning_summary_text.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::InputDelta { .. } => "response.custom_tool_call_input.delta",
            Self::InputDone { .. } => "response.custom_tool_call_input.done",
            Self::McpListInProgress { .. } => "response.mcp_list_tools.in_progress",
            Self::McpListCompleted { .. } => "response.mcp_list_tools.completed",
            Self::McpListFailed { .. } => "response.mcp_list_tools.failed",
            Self::McpArgumentsDelta { .. } => "response.mcp_call_arguments.delta",
            Self::McpArgumentsDone { .. } => "response.mcp_call_arguments.done",
            Self::McpCallInProgress { .. } => "response.mcp_call.in_progress",
            Self::McpCallCompleted { .. } => "response.mcp_call.completed",
            Self::McpCallFailed { .. } => "response.mcp_call.failed",
        }
    }
}
