//! What an answer says on the wire: completions and chunks in OpenAI's form with vLLM's extensions. Refuses to know
//! how answers come about.

mod chat;
mod completion;
mod logprobs;

use std::sync::Arc;

use serde::Serialize;
use throng_core::request::{FinishReason, TokenId};
use throng_text::Tokenizer;

pub(crate) use chat::{ChatFormat, chat_completion};
pub(crate) use completion::{CompletionFormat, EchoedPrompt, text_completion};

use crate::openai::{GenerationRequest, StreamOptions};

/// What every object of one answer repeats, and what the client wants to see.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    id: String,
    created: u64,
    model: String,
    tokenizer: Option<Arc<Tokenizer>>,
    options: StreamOptions,
    returns_token_ids: bool,
    names_tokens_by_id: bool,
    n_top: Option<usize>,
    n_prompt_top: Option<usize>,
    prompts: Vec<Arc<[TokenId]>>,
    n: usize,
}

impl Envelope {
    /// The envelope of the answer to `request`; `prefix` begins its id.
    pub fn new(
        prefix: &str,
        request: &GenerationRequest,
        tokenizer: Option<Arc<Tokenizer>>,
        prompts: Vec<Arc<[TokenId]>>,
    ) -> Self {
        let id = match &request.request_id {
            Some(id) => format!("{prefix}-{id}"),
            None => format!("{prefix}-{}", uuid::Uuid::new_v4().simple()),
        };
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let count = |n: Option<i64>| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Self {
            id,
            created: since_epoch.map_or(0, |since| since.as_secs()),
            model: request.model().to_owned(),
            // Without a tokenizer the ids are all there is to say.
            returns_token_ids: request.returns_token_ids() || tokenizer.is_none(),
            tokenizer,
            options: request.stream_options(),
            names_tokens_by_id: request.return_tokens_as_token_ids.unwrap_or(false),
            n_top: count(request.logprobs),
            n_prompt_top: count(request.prompt_logprobs),
            prompts,
            n: request.n() as usize,
        }
    }

    fn prompt_of(&self, choice_idx: usize) -> &Arc<[TokenId]> {
        &self.prompts[choice_idx / self.n]
    }
}

/// `usage`.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}

impl Usage {
    fn new(prompts: &[Arc<[TokenId]>]) -> Self {
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len()).sum();
        Self { prompt_tokens, total_tokens: prompt_tokens, ..Self::default() }
    }

    fn add_output(&mut self, n_tokens: usize) {
        self.completion_tokens += n_tokens;
        self.total_tokens += n_tokens;
    }

    fn add_cached(&mut self, n_tokens: u32) {
        self.prompt_tokens_details.cached_tokens += n_tokens as usize;
    }
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("answers are plain data with text keys")
}

/// Why a choice ended, as OpenAI says it, and what vLLM adds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum StopReason {
    Token(TokenId),
    Text(String),
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Error => "error",
    }
}

fn stop_reason(reason: FinishReason, stop: Option<String>) -> Option<StopReason> {
    match (stop, reason) {
        (Some(text), _) => Some(StopReason::Text(text)),
        (None, FinishReason::Stop(Some(token))) => Some(StopReason::Token(token)),
        _ => None,
    }
}

/// In a chunk, `usage` is absent, null or there, as the client's `stream_options` say.
#[expect(clippy::option_option, reason = "absent and null are two things in JSON")]
fn usage_field(options: StreamOptions, usage: &Usage) -> Option<Option<Usage>> {
    match (options.continuous_usage_stats, options.include_usage) {
        (true, _) => Some(Some(*usage)),
        (false, true) => Some(None),
        (false, false) => None,
    }
}
