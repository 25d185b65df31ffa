//! The objects of answers: messages, blocks, usage, and the events of a stream.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use throng_core::request::FinishReason;

use crate::answer::{ChoiceEnd, Tally, Timings};

/// A message, whole or at the start of its stream.
#[derive(Debug, Serialize)]
pub(super) struct Message<'a> {
    pub id: &'a str,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: &'a str,
    pub content: Vec<Block<'a>>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<&'a str>,
    pub usage: Usage,
}

/// A block of content.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block<'a> {
    Text { text: &'a str },
    Thinking { thinking: &'a str, signature: Cow<'a, str> },
    ToolUse { id: &'a str, name: &'a str, input: Cow<'a, RawValue> },
}

/// Token counts of a message. Prompt tokens found in the prefix cache, and those that `cache_control` keeps
/// there, do not count as input tokens.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation: CacheCreation,
    /// Throng's own. Absent where the prompt has no images.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens_details: Option<InputTokensDetails>,
    output_tokens: u64,
    output_tokens_details: OutputTokensDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct InputTokensDetails {
    image_tokens: u64,
}

/// Computed prompt tokens that are kept, by the time for which they are.
#[derive(Debug, Clone, Copy, Serialize)]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputTokensDetails {
    thinking_tokens: u64,
}

impl From<&Tally> for Usage {
    fn from(tally: &Tally) -> Self {
        Self {
            input_tokens: tally.prompt.saturating_sub(tally.cached + tally.kept.n_all()),
            cache_creation_input_tokens: tally.kept.n_all(),
            cache_read_input_tokens: tally.cached,
            cache_creation: CacheCreation {
                ephemeral_5m_input_tokens: tally.kept.short,
                ephemeral_1h_input_tokens: tally.kept.long,
            },
            input_tokens_details: (tally.images > 0)
                .then_some(InputTokensDetails { image_tokens: tally.images }),
            output_tokens: tally.output,
            output_tokens_details: OutputTokensDetails { thinking_tokens: tally.reasoning },
            timings: None,
        }
    }
}

impl Usage {
    /// Token counts of a whole message, with timings if requested.
    pub fn of_whole(tally: &Tally, has_timings: bool) -> Self {
        Self { timings: has_timings.then(|| tally.into()), ..Self::from(tally) }
    }
}

/// An event of a stream; its name is its `type`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: u32, content_block: Block<'a> },
    ContentBlockDelta { index: u32, delta: BlockDelta<'a> },
    ContentBlockStop { index: u32 },
    MessageDelta { delta: MessageEnd<'a>, usage: Usage },
    MessageStop,
    Ping,
}

impl Event<'_> {
    /// The name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}

/// An addition to a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

/// The end of a message.
#[derive(Debug, Default, Serialize)]
pub(super) struct MessageEnd<'a> {
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<&'a str>,
}

impl<'a> MessageEnd<'a> {
    /// The end of a choice. `at_limit` is the stop reason if the output reached its token limit.
    pub fn of(end: &'a ChoiceEnd, at_limit: &'static str) -> Self {
        let reason = match end.reason {
            _ if end.is_filtered => "refusal",
            FinishReason::Length => at_limit,
            _ if end.stop.is_some() => "stop_sequence",
            _ if end.has_calls => "tool_use",
            _ => "end_turn",
        };
        let stop_sequence = end.stop.as_deref().filter(|_| !end.is_filtered);
        Self { stop_reason: Some(reason), stop_sequence }
    }
}

/// The arguments of a call as an object. Other text, such as truncated arguments, is wrapped in an object
/// as Anthropic's guide to fine-grained tool streaming advises.
pub(super) fn input_of(arguments: &str) -> Cow<'_, RawValue> {
    let is_object = arguments.trim_start().starts_with('{');
    match serde_json::from_str::<&RawValue>(arguments) {
        Ok(input) if is_object => Cow::Borrowed(input),
        _ => {
            let wrapped = match arguments.trim() {
                "" => "{}".to_owned(),
                text => serde_json::json!({"INVALID_JSON": text}).to_string(),
            };
            Cow::Owned(RawValue::from_string(wrapped).expect("an object"))
        }
    }
}

/// The models of `GET /v1/models`, all on one page.
#[derive(Debug, Serialize)]
pub struct ModelPage<'a> {
    data: Vec<ModelInfo<'a>>,
    first_id: Option<&'a str>,
    has_more: bool,
    last_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ModelInfo<'a> {
    r#type: &'static str,
    id: &'a str,
    display_name: &'a str,
    created_at: &'static str,
    lifecycle: &'static str,
}

impl<'a> ModelPage<'a> {
    /// Creates the page of models with these names. Their release dates are unknown.
    pub fn new(names: impl Iterator<Item = &'a str>) -> Self {
        let created_at = "1970-01-01T00:00:00Z";
        let info = |id| ModelInfo { r#type: "model", id, display_name: id, created_at, lifecycle: "active" };
        let data: Vec<_> = names.map(info).collect();
        let (first_id, last_id) = (data.first().map(|m| m.id), data.last().map(|m| m.id));
        Self { data, first_id, has_more: false, last_id }
    }
}
