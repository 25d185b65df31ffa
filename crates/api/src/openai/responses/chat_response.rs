//! Answers and chunks of chat completions, key by key in OpenAI's order, with vLLM's additions. All borrow
//! what they say and are written straight to bytes. Does not know where the words come from.

use serde::Serialize;
use throng_core::request::TokenId;

use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::response::{Envelope, Finish, SYSTEM_FINGERPRINT, StopReason, as_list};
use super::usage::{ChunkUsage, Usage};
use crate::answer::Timings;

/// The whole answer to a chat.
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

/// One answer to a chat.
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

/// What the model said, whole.
#[derive(Debug, Serialize)]
pub struct AssistantMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<&'a str>,
    /// The reasoning, under vLLM's name and the older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CalledTool<'a>>,
}

/// A call of a tool, or what is new of it.
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
    /// A message of text alone.
    pub fn text(content: &'a str) -> Self {
        Self::new(content, "", Vec::new())
    }

    /// A message with reasoning and calls, where there are any. Beside them, content may be absent.
    pub fn new(content: &'a str, reasoning: &'a str, tool_calls: Vec<CalledTool<'a>>) -> Self {
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        let has_more = reasoning.is_some() || !tool_calls.is_empty();
        let content = if content.is_empty() && has_more { None } else { Some(content) };
        let reasoning_content = reasoning;
        Self { role: "assistant", content, refusal: None, reasoning, reasoning_content, tool_calls }
    }
}

impl<'a> CalledTool<'a> {
    /// A whole call.
    pub fn whole(id: &'a str, name: &'a str, arguments: &'a str) -> Self {
        let function = CalledFunction { name: Some(name), arguments };
        Self { index: None, id: Some(id), kind: Some("function"), function }
    }

    /// The beginning of a call in a stream.
    pub fn begun(index: u32, id: &'a str, name: &'a str) -> Self {
        Self { index: Some(index), ..Self::whole(id, name, "") }
    }

    /// More of a call's arguments.
    pub fn more(index: u32, arguments: &'a str) -> Self {
        let function = CalledFunction { name: None, arguments };
        Self { index: Some(index), id: None, kind: None, function }
    }
}

impl<'a> ChatCompletion<'a> {
    /// The whole answer. The last two are given only when the client asked for them.
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

    /// The same answer, which tells where its time went if that was asked for.
    pub fn with_timings(self, timings: Option<Timings>) -> Self {
        Self { timings, ..self }
    }
}

impl<'a> ChatChoice<'a> {
    /// One answer; `logprobs` and `token_ids` only when the client asked for them.
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

/// One event of a streamed chat: one choice, or none and the usage.
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

/// What is new of one answer to a chat.
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

/// What is new of a message.
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
    /// More text.
    pub fn content(content: Option<&'a str>) -> Self {
        Self { content, ..Self::default() }
    }

    /// More reasoning.
    pub fn reasoning(text: &'a str) -> Self {
        Self { reasoning: Some(text), reasoning_content: Some(text), ..Self::default() }
    }

    /// A call, or more of it.
    pub fn call(call: CalledTool<'a>) -> Self {
        Self { tool_call: Some(call), ..Self::default() }
    }
}

impl<'a> ChatChunk<'a> {
    /// A chunk with what is new of one choice; see [`crate::openai::StreamOptions::chunk_usage`].
    pub fn new(envelope: &Envelope<'a>, choice: ChatChunkChoice<'a>, usage: ChunkUsage) -> Self {
        Self::with(envelope, Some(choice), usage)
    }

    /// The chunk before the end that tells the usage of the whole request, and where its time went, as far as
    /// that was asked for.
    pub fn of_usage(envelope: &Envelope<'a>, usage: Option<Usage>, timings: Option<Timings>) -> Self {
        Self { timings, ..Self::with(envelope, None, usage.map(Some)) }
    }

    /// Tells the prompt's tokens too: in a choice's first chunk, when the client asked for token ids.
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
    /// The first of a choice: it says who speaks, and nothing yet.
    pub fn first(index: usize) -> Self {
        let delta = ChatDelta { role: Some("assistant"), ..ChatDelta::content(Some("")) };
        Self::new(index, delta, None, None, None)
    }

    /// What is new: of the message, the end, and what the client asked to be told of the new tokens.
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
