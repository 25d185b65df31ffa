//! Answers and chunks of chat completions, key by key in OpenAI's order, with vLLM's additions. All borrow what
//! they say and are written straight to bytes. Does not know where the words come from.

use serde::Serialize;
use throng_core::request::TokenId;

use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::response::{Envelope, Finish, SYSTEM_FINGERPRINT, StopReason, as_list};
use super::usage::{ChunkUsage, Usage};

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

#[derive(Debug, Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<&'a str>,
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
        }
    }
}

impl<'a> ChatChoice<'a> {
    /// One answer; `logprobs` and `token_ids` only when the client asked for them.
    pub fn new(
        index: usize,
        content: &'a str,
        finish: Finish<'a>,
        logprobs: Option<ChatLogprobs<'a>>,
        token_ids: Option<Vec<TokenId>>,
    ) -> Self {
        let message = AssistantMessage { role: "assistant", content, refusal: None };
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
    prompt_token_ids: Option<&'a [TokenId]>,
}

/// What is new of one answer to a chat.
#[derive(Debug, Serialize)]
pub struct ChatChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

#[derive(Debug, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl<'a> ChatChunk<'a> {
    /// A chunk with what is new of one choice; see [`crate::openai::StreamOptions::chunk_usage`].
    pub fn new(envelope: &Envelope<'a>, choice: ChatChunkChoice<'a>, usage: ChunkUsage) -> Self {
        Self::with(envelope, Some(choice), usage)
    }

    /// The chunk before the end that tells the usage of the whole request.
    pub fn of_usage(envelope: &Envelope<'a>, usage: Usage) -> Self {
        Self::with(envelope, None, Some(Some(usage)))
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
            prompt_token_ids: None,
        }
    }
}

impl<'a> ChatChunkChoice<'a> {
    /// The first of a choice: it says who speaks, and nothing yet.
    pub fn first(index: usize) -> Self {
        let delta = Delta { role: Some("assistant"), content: Some("") };
        Self { delta, ..Self::new(index, None, None, None, None) }
    }

    /// What is new: text (`None`: no text), the end, and what the client asked to be told of the new tokens.
    pub fn new(
        index: usize,
        content: Option<&'a str>,
        finish: Option<Finish<'a>>,
        logprobs: Option<ChatLogprobs<'a>>,
        token_ids: Option<&'a [TokenId]>,
    ) -> Self {
        Self {
            index,
            delta: Delta { role: None, content },
            logprobs,
            finish_reason: finish.map(|finish| finish.reason),
            stop_reason: finish.and_then(|finish| finish.stop),
            token_ids,
        }
    }
}
