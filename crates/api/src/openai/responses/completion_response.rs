//! Answers and chunks of text completions, with keys in OpenAI's order and vLLM's additions. All borrow
//! their content and serialize directly to bytes. Does not know where the text comes from.

use serde::{Serialize, Serializer};
use throng_core::request::TokenId;

use super::logprobs::{CompletionLogprobs, PromptLogprobs};
use super::response::{Envelope, Finish, SYSTEM_FINGERPRINT, StopReason, as_list};
use super::usage::{ChunkUsage, Usage};
use crate::answer::Timings;

/// A whole text completion.
#[derive(Debug, Serialize)]
pub struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice<'a>>,
    usage: Usage,
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// A choice of a text completion.
#[derive(Debug, Serialize)]
pub struct CompletionChoice<'a> {
    text: EchoedText<'a>,
    index: usize,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason<'a>>,
    #[serde(flatten)]
    asked: AskedOfChoice<'a>,
}

/// The text of an answer after that of its prompt, which is empty unless echoed. All choices of a prompt
/// share the prompt's text.
#[derive(Debug, Clone, Copy)]
pub struct EchoedText<'a> {
    /// Text of the prompt.
    pub prompt: &'a str,
    /// Text of the answer.
    pub answer: &'a str,
}

impl Serialize for EchoedText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}{}", self.prompt, self.answer))
    }
}

/// Parts of a choice that are set only if the client requested them.
#[derive(Debug, Default, Serialize)]
pub struct AskedOfChoice<'a> {
    /// Output tokens of the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
    /// Log-probabilities of the prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [TokenId]>,
}

impl<'a> Completion<'a> {
    /// Creates a whole text completion.
    pub fn new(envelope: &Envelope<'a>, choices: Vec<CompletionChoice<'a>>, usage: Usage) -> Self {
        Self {
            id: envelope.id,
            object: "text_completion",
            created: envelope.created,
            model: envelope.model,
            choices,
            usage,
            system_fingerprint: SYSTEM_FINGERPRINT,
            timings: None,
        }
    }

    /// Adds timings, if requested.
    pub fn with_timings(self, timings: Option<Timings>) -> Self {
        Self { timings, ..self }
    }
}

impl<'a> CompletionChoice<'a> {
    /// Creates a choice.
    pub fn new(
        index: usize,
        text: EchoedText<'a>,
        finish: Finish<'a>,
        logprobs: Option<CompletionLogprobs<'a>>,
        asked: AskedOfChoice<'a>,
    ) -> Self {
        Self { text, index, logprobs, finish_reason: finish.reason, stop_reason: finish.stop, asked }
    }
}

/// An event of a streamed text completion: one choice, or none and the usage.
#[derive(Debug, Serialize)]
pub struct CompletionChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    #[serde(rename = "choices", serialize_with = "as_list")]
    choice: Option<CompletionChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: ChunkUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// Fields that a chunk adds to a choice.
#[derive(Debug, Serialize)]
pub struct CompletionChunkChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

impl<'a> CompletionChunk<'a> {
    /// Creates a chunk with additions to one choice. About `usage` see
    /// [`crate::openai::StreamOptions::chunk_usage`].
    pub fn new(envelope: &Envelope<'a>, choice: CompletionChunkChoice<'a>, usage: ChunkUsage) -> Self {
        Self::with(envelope, Some(choice), usage)
    }

    /// Creates the chunk before the end, with the usage of the whole request and its timings, as far as
    /// requested.
    pub fn of_usage(envelope: &Envelope<'a>, usage: Option<Usage>, timings: Option<Timings>) -> Self {
        Self { timings, ..Self::with(envelope, None, usage.map(Some)) }
    }

    fn with(envelope: &Envelope<'a>, choice: Option<CompletionChunkChoice<'a>>, usage: ChunkUsage) -> Self {
        Self {
            id: envelope.id,
            object: "text_completion",
            created: envelope.created,
            model: envelope.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            choice,
            usage,
            timings: None,
        }
    }
}

impl<'a> CompletionChunkChoice<'a> {
    /// Creates additions to a choice: text, the end, and the requested reports of new tokens.
    pub fn new(
        index: usize,
        text: &'a str,
        finish: Option<Finish<'a>>,
        logprobs: Option<CompletionLogprobs<'a>>,
        token_ids: Option<&'a [TokenId]>,
    ) -> Self {
        Self {
            text,
            index,
            logprobs,
            finish_reason: finish.map(|finish| finish.reason),
            stop_reason: finish.and_then(|finish| finish.stop),
            token_ids,
            prompt_token_ids: None,
        }
    }

    /// Adds the prompt's tokens. Used for a choice's first chunk if the client requested token ids.
    pub fn with_prompt_token_ids(mut self, prompt: &'a [TokenId]) -> Self {
        self.prompt_token_ids = Some(prompt);
        self
    }
}
