//! From what happened to what the wire says: fills the answers and chunks of [`crate::openai`]. Does not know how
//! answers come about.

mod chat;
mod completion;
mod text_offsets;

use std::sync::Arc;

use throng_core::request::TokenId;
use throng_text::Tokenizer;

pub(crate) use chat::{ChatFormat, chat_completion};
pub(crate) use completion::{CompletionFormat, EchoedPrompt, text_completion};

use crate::generation::AnswerReading;
use crate::replica::Timing;
use throng_api::openai::logprobs::TokenSpelling;
use throng_api::openai::response::Envelope;
use throng_api::openai::timings::{Moments, Timings};
use throng_api::openai::usage::{ChunkUsage, Usage};
use throng_api::openai::{GenerationRequest, StreamOptions};

/// What every object of one answer repeats, and what the client wants to see.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    id: String,
    created: u64,
    model: String,
    tokenizer: Option<Arc<Tokenizer>>,
    options: StreamOptions,
    token_ids: bool,
    tokens_as_token_ids: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    prompts: Vec<Arc<[TokenId]>>,
    n: usize,
    reading: Option<AnswerReading>,
}

impl Asked {
    /// What `request` asked about these prompts; `id` names its answer.
    pub fn new(
        id: String,
        request: &GenerationRequest,
        tokenizer: Option<Arc<Tokenizer>>,
        prompts: Vec<Arc<[TokenId]>>,
    ) -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            id,
            created: since_epoch.map_or(0, |since| since.as_secs()),
            model: request.model().to_owned(),
            // Without a tokenizer the ids are all there is to say.
            token_ids: request.returns_token_ids() || tokenizer.is_none(),
            tokenizer,
            options: request.stream_options(),
            tokens_as_token_ids: request.return_tokens_as_token_ids.unwrap_or(false),
            logprobs: request.logprobs.is_some(),
            prompt_logprobs: request.prompt_logprobs.is_some(),
            prompts,
            n: request.n() as usize,
            reading: None,
        }
    }

    /// The same, its answers' text to be read in this way.
    pub fn with_reading(self, reading: Option<AnswerReading>) -> Self {
        Self { reading, ..self }
    }

    /// Choices that are shown of each prompt.
    pub fn n(&self) -> usize {
        self.n
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope { id: &self.id, created: self.created, model: &self.model }
    }

    fn prompt_of(&self, choice_idx: usize) -> &[TokenId] {
        &self.prompts[choice_idx / self.n]
    }

    fn bytes_of(&self, token: TokenId) -> Option<&[u8]> {
        self.tokenizer.as_ref()?.token_bytes(token)
    }

    fn is_control(&self, token: TokenId) -> bool {
        self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_special(token))
    }

    fn spelling<'a>(&self, bytes_of: &'a dyn Fn(TokenId) -> Option<&'a [u8]>) -> TokenSpelling<'a> {
        TokenSpelling { bytes_of, as_token_ids: self.tokens_as_token_ids }
    }
}

/// Tokens of a request so far.
#[derive(Debug, Clone, Copy)]
struct Tally {
    prompt: u64,
    cached: u64,
    output: u64,
    reasoning: u64,
    moments: Moments,
}

impl Tally {
    fn new(asked: &Asked) -> Self {
        let prompt = asked.prompts.iter().map(|prompt| prompt.len() as u64).sum();
        Self { prompt, cached: 0, output: 0, reasoning: 0, moments: Moments::default() }
    }

    fn usage(&self) -> Usage {
        Usage::new(self.prompt, self.output, self.cached).with_reasoning(self.reasoning)
    }

    /// Notes when what happened to a choice that has ended.
    fn ended(&mut self, timing: &Timing) {
        self.moments.add(timing.first_step, timing.first_token, timing.last_token);
    }

    /// Where the time went, if it was asked for.
    fn timings(&self, asked: &Asked) -> Option<Timings> {
        let told = asked.options.include_timings;
        told.then(|| Timings::new(&self.moments, self.prompt, self.cached, self.output))
    }

    fn of_chunk(&self, asked: &Asked) -> ChunkUsage {
        asked.options.chunk_usage(|| self.usage())
    }
}
