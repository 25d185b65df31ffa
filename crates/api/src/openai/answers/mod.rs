//! OpenAI's endpoints for text: chat completions and text completions, as [`Dialect`]s.

mod chat;
mod completion;
mod text_offsets;

use serde::Serialize;
use throng_core::request::TokenId;

use crate::answer::{AnswerShape, ChoiceEnd, Tally, Timings};
use crate::dialect::{AnswerFacts, Dialect, Request};
use crate::error::ApiError;
use crate::events::Events;
use crate::field::ReadOptions;
use crate::openai::logprobs::TokenSpelling;
use crate::openai::response::{Envelope, Finish, chat_id, completion_id};
use crate::openai::usage::{ChunkUsage, Usage};
use crate::openai::{chat as chat_request, completion as completion_request};
use crate::spec::{GenerationOptions, StreamOptions};

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, Copy)]
pub struct ChatCompletions;

impl Dialect for ChatCompletions {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let spec = chat_request::parse(body, options)?;
        let id = chat_id(spec.options.request_id.as_deref());
        let view = Box::new(chat::ChatView::new(ResponseOptions::new(id, &spec.options)));
        Ok(Request { spec, view })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error.to_json()
    }
}

/// `POST /v1/completions`.
#[derive(Debug, Clone, Copy)]
pub struct Completions;

impl Dialect for Completions {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let request = completion_request::parse(body, options)?;
        let id = completion_id(request.spec.options.request_id.as_deref());
        let response = ResponseOptions::new(id, &request.spec.options);
        let view = Box::new(completion::CompletionView::new(response, request.returns_prompt_logprobs));
        Ok(Request { spec: request.spec, view })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error.to_json()
    }
}

/// The client's options for an answer.
#[derive(Debug, Clone)]
struct ResponseOptions {
    id: String,
    stream: StreamOptions,
    /// Whether to report timings.
    timings: bool,
    token_ids: bool,
    tokens_as_token_ids: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    /// Number of choices in the answer for each prompt.
    n: usize,
}

impl ResponseOptions {
    fn new(id: String, options: &GenerationOptions) -> Self {
        Self {
            id,
            stream: options.stream_options(),
            timings: options.reports_timings(),
            token_ids: options.returns_token_ids(),
            tokens_as_token_ids: options.return_tokens_as_token_ids.unwrap_or(false),
            logprobs: options.logprobs.is_some(),
            prompt_logprobs: options.prompt_logprobs.is_some(),
            n: options.n() as usize,
        }
    }

    fn shape(&self) -> AnswerShape {
        AnswerShape {
            prompt_logprobs_param: "prompt_logprobs",
            token_ids: self.token_ids,
            ..AnswerShape::default()
        }
    }
}

/// An answer in progress: the facts that all its objects repeat, and its usage so far.
#[derive(Debug)]
struct Response {
    options: ResponseOptions,
    facts: AnswerFacts,
    tally: Tally,
}

impl Response {
    fn new(mut options: ResponseOptions, facts: AnswerFacts) -> Self {
        // Without a tokenizer, token ids are the only output; upstream engines, which have no prompt tokens
        // here, send only text.
        options.token_ids |= facts.tokenizer.is_none() && facts.n_prompt_tokens() > 0;
        let tally = facts.tally();
        Self { options, facts, tally }
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope { id: &self.options.id, created: self.facts.created_unix_s, model: &self.facts.model }
    }

    fn prompt_of(&self, choice_idx: usize) -> &[TokenId] {
        &self.facts.prompts[choice_idx / self.options.n]
    }

    /// The text of a prompt that the answer repeats.
    fn text(&self, prompt_idx: usize) -> Option<&str> {
        self.facts.texts.as_ref()?.get(prompt_idx).map(String::as_str)
    }

    fn bytes_of(&self, token: TokenId) -> Option<&[u8]> {
        self.facts.tokenizer.as_ref()?.token_bytes(token)
    }

    fn is_control(&self, token: TokenId) -> bool {
        self.facts.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_special(token))
    }

    fn spelling<'a>(&self, bytes_of: &'a dyn Fn(TokenId) -> Option<&'a [u8]>) -> TokenSpelling<'a> {
        TokenSpelling { bytes_of, as_token_ids: self.options.tokens_as_token_ids }
    }

    fn chunk_usage(&self) -> ChunkUsage {
        self.options.stream.chunk_usage(|| usage(&self.tally))
    }

    /// The timings of an answer with this tally, if requested.
    fn timings(&self, tally: &Tally) -> Option<Timings> {
        self.options.timings.then(|| tally.into())
    }

    /// Writes the end of a stream: a chunk with usage and timings if either was requested, then the last
    /// event.
    fn push_end<'a, C: Serialize>(
        &'a self,
        of_usage: impl FnOnce(&Envelope<'a>, Option<Usage>, Option<Timings>) -> C,
        out: &mut Events,
    ) {
        let usage = self.options.stream.include_usage.then(|| usage(&self.tally));
        let timings = self.timings(&self.tally);
        if usage.is_some() || timings.is_some() {
            out.push(&of_usage(&self.envelope(), usage, timings));
        }
        out.push_done();
    }
}

fn usage(tally: &Tally) -> Usage {
    let usage = Usage::new(tally.prompt, tally.output, tally.cached);
    usage.with_reasoning(tally.reasoning).with_images(tally.images)
}

/// The end of a choice. If it is unknown, the choice was aborted.
fn finish(end: Option<&ChoiceEnd>) -> Finish<'_> {
    match end {
        Some(end) if end.is_filtered => Finish::filtered(),
        Some(end) => {
            let finish = Finish::new(end.reason, end.stop.as_deref());
            if end.has_calls { finish.with_calls() } else { finish }
        }
        None => Finish::new(throng_core::request::FinishReason::Abort, None),
    }
}

/// Writes the last event of a failed stream.
fn push_error(error: &ApiError, out: &mut Events) {
    out.push_data(&error.to_json());
}
