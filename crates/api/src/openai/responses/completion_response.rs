//! Answers and chunks of text completions, key by key in OpenAI's order, with vLLM's additions. All borrow
//! what they say and are written straight to bytes. Does not know where the words come from.

use serde::{Serialize, Serializer};
use throng_core::request::TokenId;

use super::logprobs::{CompletionLogprobs, PromptLogprobs};
use super::response::{Envelope, Finish, SYSTEM_FINGERPRINT, StopReason, as_list};
use super::usage::{ChunkUsage, Usage};
use crate::answer::Timings;

/// The whole answer to a text completion.
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

/// One answer to a prompt.
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

/// An answer's text behind that of its prompt, which is empty where it is not echoed. All choices of a prompt
/// share it.
#[derive(Debug, Clone, Copy)]
pub struct EchoedText<'a> {
    /// The prompt's.
    pub prompt: &'a str,
    /// The answer's.
    pub answer: &'a str,
}

impl Serialize for EchoedText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}{}", self.prompt, self.answer))
    }
}

/// What an answer tells only when the client asked.
#[derive(Debug, Default, Serialize)]
pub struct AskedOfChoice<'a> {
    /// The output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
    /// The log-probabilities of the prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    /// The prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [TokenId]>,
}

impl<'a> Completion<'a> {
    /// The whole answer.
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

    /// The same answer, which tells where its time went if that was asked for.
    pub fn with_timings(self, timings: Option<Timings>) -> Self {
        Self { timings, ..self }
    }
}

impl<'a> CompletionChoice<'a> {
    /// One answer.
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

/// One event of a streamed text completion: one choice, or none and the usage.
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

/// What is new of one answer to a prompt.
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
    /// A chunk with what is new of one choice; see [`crate::openai::StreamOptions::chunk_usage`].
    pub fn new(envelope: &Envelope<'a>, choice: CompletionChunkChoice<'a>, usage: ChunkUsage) -> Self {
        Self::with(envelope, Some(choice), usage)
    }

    /// The chunk before the end that tells the usage of the whole request, and where its time went, as far as
    /// that was asked for.
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
    /// What is new: text, the end, and what the client asked to be told of the new tokens.
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

    /// Tells the prompt's tokens too: in a choice's first chunk, when the client asked for token ids.
    pub fn with_prompt_token_ids(mut self, prompt: &'a [TokenId]) -> Self {
        self.prompt_token_ids = Some(prompt);
        self
    }
}
