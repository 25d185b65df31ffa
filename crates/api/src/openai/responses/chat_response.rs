//! Answers and chunks of chat completions, with keys in OpenAI's order and vLLM's additions. All borrow
//! their content and serialize directly to bytes. Does not know where the text comes from.

use serde::Serialize;
use throng_core::request::TokenId;

use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::response::{Envelope, Finish, SYSTEM_FINGERPRINT, StopReason, as_list};
use super::usage::{ChunkUsage, Usage};
use crate::answer::Timings;

/// A whole chat completion.
#[derive(Debug, Serialize)]
pub struct ChatCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice<'a>>,
    usage: Usage,
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// A choice of a chat completion.
#[derive(Debug, Serialize)]
pub struct ChatChoice<'a> {
    index: usize,
    message: AssistantMessage<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

/// The assistant's message, whole.
#[derive(Debug, Serialize)]
pub struct AssistantMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<&'a str>,
    /// Reasoning text, under vLLM's name and the older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CalledTool<'a>>,
}

/// A tool call, or a fragment of one.
#[derive(Debug, Serialize)]
pub struct CalledTool<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: CalledFunction<'a>,
}

#[derive(Debug, Serialize)]
struct CalledFunction<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl<'a> AssistantMessage<'a> {
    /// Creates a message of text alone.
    pub fn text(content: &'a str) -> Self {
        Self::new(content, "", Vec::new())
    }

    /// Creates a message with reasoning and calls, if any. With either of them, content may be absent.
    pub fn new(content: &'a str, reasoning: &'a str, tool_calls: Vec<CalledTool<'a>>) -> Self {
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        let has_more = reasoning.is_some() || !tool_calls.is_empty();
        let content = if content.is_empty() && has_more { None } else { Some(content) };
        let reasoning_content = reasoning;
        Self { role: "assistant", content, refusal: None, reasoning, reasoning_content, tool_calls }
    }
}

impl<'a> CalledTool<'a> {
    /// Creates a whole call.
    pub fn whole(id: &'a str, name: &'a str, arguments: &'a str) -> Self {
        let function = CalledFunction { name: Some(name), arguments };
        Self { index: None, id: Some(id), kind: Some("function"), function }
    }

    /// Creates the first fragment of a call.
    pub fn begun(index: u32, id: &'a str, name: &'a str) -> Self {
        Self { index: Some(index), ..Self::whole(id, name, "") }
    }

    /// Creates a further fragment of a call's arguments.
    pub fn more(index: u32, arguments: &'a str) -> Self {
        let function = CalledFunction { name: None, arguments };
        Self { index: Some(index), id: None, kind: None, function }
    }
}

impl<'a> ChatCompletion<'a> {
    /// Creates a whole chat completion. The last two arguments are set only if the client requested them.
    pub fn new(
        envelope: &Envelope<'a>,
        choices: Vec<ChatChoice<'a>>,
        usage: Usage,
        prompt_logprobs: Option<PromptLogprobs<'a>>,
        prompt_token_ids: Option<&'a [TokenId]>,
    ) -> Self {
        let Envelope { id, created, model } = *envelope;
        Self {
            id,
            object: "chat.completion",
            created,
            model,
            choices,
            usage,
            system_fingerprint: SYSTEM_FINGERPRINT,
            prompt_logprobs,
            prompt_token_ids,
            timings: None,
        }
    }

    /// Adds timings, if requested.
    pub fn with_timings(self, timings: Option<Timings>) -> Self {
        Self { timings, ..self }
    }
}

impl<'a> ChatChoice<'a> {
    /// Creates a choice. `logprobs` and `token_ids` are set only if the client requested them.
    pub fn new(
        index: usize,
        message: AssistantMessage<'a>,
        finish: Finish<'a>,
        logprobs: Option<ChatLogprobs<'a>>,
        token_ids: Option<Vec<TokenId>>,
    ) -> Self {
        Self { index, message, logprobs, finish_reason: finish.reason, stop_reason: finish.stop, token_ids }
    }
}

/// An event of a streamed chat completion: one choice, or none and the usage.
#[derive(Debug, Serialize)]
pub struct ChatChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    #[serde(rename = "choices", serialize_with = "as_list")]
    choice: Option<ChatChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: ChunkUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

/// Fields that a chunk adds to a choice.
#[derive(Debug, Serialize)]
pub struct ChatChunkChoice<'a> {
    index: usize,
    delta: ChatDelta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

/// Fields that a chunk adds to a message.
#[derive(Debug, Default, Serialize)]
pub struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(rename = "tool_calls", serialize_with = "as_list", skip_serializing_if = "Option::is_none")]
    tool_call: Option<CalledTool<'a>>,
}

impl<'a> ChatDelta<'a> {
    /// Creates an addition of text.
    pub fn content(content: Option<&'a str>) -> Self {
        Self { content, ..Self::default() }
    }

    /// Creates an addition of reasoning.
    pub fn reasoning(text: &'a str) -> Self {
        Self { reasoning: Some(text), reasoning_content: Some(text), ..Self::default() }
    }

    /// Creates an addition of a call or a fragment of one.
    pub fn call(call: CalledTool<'a>) -> Self {
        Self { tool_call: Some(call), ..Self::default() }
    }
}

impl<'a> ChatChunk<'a> {
    /// Creates a chunk with additions to one choice. About `usage` see
    /// [`crate::openai::StreamOptions::chunk_usage`].
    pub fn new(envelope: &Envelope<'a>, choice: ChatChunkChoice<'a>, usage: ChunkUsage) -> Self {
        Self::with(envelope, Some(choice), usage)
    }

    /// Creates the chunk before the end, with the usage of the whole request and its timings, as far as
    /// requested.
    pub fn of_usage(envelope: &Envelope<'a>, usage: Option<Usage>, timings: Option<Timings>) -> Self {
        Self { timings, ..Self::with(envelope, None, usage.map(Some)) }
    }

    /// Adds the prompt's tokens. Used for a choice's first chunk if the client requested token ids.
    pub fn with_prompt_token_ids(mut self, prompt: &'a [TokenId]) -> Self {
        self.prompt_token_ids = Some(prompt);
        self
    }

    fn with(envelope: &Envelope<'a>, choice: Option<ChatChunkChoice<'a>>, usage: ChunkUsage) -> Self {
        Self {
            id: envelope.id,
            object: "chat.completion.chunk",
            created: envelope.created,
            model: envelope.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            choice,
            usage,
            timings: None,
            prompt_token_ids: None,
        }
    }
}

impl<'a> ChatChunkChoice<'a> {
    /// Creates the first chunk of a choice: it has the role, and no text yet.
    pub fn first(index: usize) -> Self {
        let delta = ChatDelta { role: Some("assistant"), ..ChatDelta::content(Some("")) };
        Self::new(index, delta, None, None, None)
    }

    /// Creates additions to a choice: to the message, the end, and the requested reports of new tokens.
    pub fn new(
        index: usize,
        delta: ChatDelta<'a>,
        finish: Option<Finish<'a>>,
        logprobs: Option<ChatLogprobs<'a>>,
        token_ids: Option<&'a [TokenId]>,
    ) -> Self {
        Self {
            index,
            delta,
            logprobs,
            finish_reason: finish.map(|finish| finish.reason),
            stop_reason: finish.and_then(|finish| finish.stop),
            token_ids,
        }
    }
}
