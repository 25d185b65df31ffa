//! Chat completions on the wire, whole and in chunks. Refuses to know templates.

use serde::Serialize;
use throng_core::request::TokenId;
use throng_engine::TokenReport;

use super::logprobs::{ChatLogprobs, PromptToken};
use super::{Envelope, StopReason, Usage, finish_reason, stop_reason, to_json, usage_field};
use crate::generation::{Answer, Events, Output, StreamFormat};

#[derive(Debug, Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    usage: Usage,
    system_fingerprint: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<PromptToken>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice],
    system_fingerprint: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[TokenId; 1]>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// The body of a whole chat completion.
pub(crate) fn chat_completion(envelope: &Envelope, answer: Answer) -> Vec<u8> {
    let mut usage = Usage::new(&envelope.prompts);
    let prompt = answer.prompts.first();
    usage.add_cached(prompt.map_or(0, |prompt| prompt.cached_tokens));
    let prompt_logprobs = prompt.and_then(|prompt| envelope.prompt_logprobs(&prompt.logprobs));
    let choices = answer.choices.into_iter().enumerate().map(|(index, choice)| {
        usage.add_output(choice.tokens.len());
        let (reason, stop) = choice.reason_and_stop();
        Choice {
            index,
            logprobs: envelope.chat_logprobs(choice.tokens.iter().map(|(_, report)| report)),
            finish_reason: finish_reason(reason),
            stop_reason: stop_reason(reason, stop),
            token_ids: envelope.returns_token_ids.then(|| choice.token_ids()),
            message: Message { role: "assistant", content: choice.text, refusal: None },
        }
    });
    let choices = choices.collect();
    let prompt_token_ids = if envelope.returns_token_ids { envelope.prompts.first() } else { None };
    let body = Completion {
        id: &envelope.id,
        object: "chat.completion",
        created: envelope.created,
        model: &envelope.model,
        choices,
        usage,
        system_fingerprint: None,
        prompt_logprobs,
        prompt_token_ids: prompt_token_ids.map(|prompt| &**prompt),
    };
    to_json(&body)
}

/// The chunks of a streamed chat completion.
#[derive(Debug)]
pub(crate) struct ChatFormat {
    envelope: Envelope,
    usage: Usage,
}

impl ChatFormat {
    /// For the answer of this envelope.
    pub fn new(envelope: Envelope) -> Self {
        let usage = Usage::new(&envelope.prompts);
        Self { envelope, usage }
    }

    fn push(&self, choice: ChunkChoice, events: &mut Events) {
        let usage = usage_field(self.envelope.options, &self.usage);
        events.push(&self.chunk(&[choice], usage));
    }

    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice], usage: Option<Option<Usage>>) -> Chunk<'a> {
        Chunk {
            id: &self.envelope.id,
            object: "chat.completion.chunk",
            created: self.envelope.created,
            model: &self.envelope.model,
            choices,
            system_fingerprint: None,
            usage,
        }
    }

    fn push_token(&mut self, index: usize, text: String, report: &TokenReport, events: &mut Events) {
        self.usage.add_output(1);
        let logprobs = self.envelope.chat_logprobs([report]);
        let token_ids = self.envelope.returns_token_ids.then_some([report.chosen.token]);
        if text.is_empty() && logprobs.is_none() && token_ids.is_none() {
            return;
        }
        let delta = Delta { role: None, content: Some(text) };
        let choice =
            ChunkChoice { index, delta, logprobs, finish_reason: None, stop_reason: None, token_ids };
        self.push(choice, events);
    }
}

impl StreamFormat for ChatFormat {
    fn begin(&mut self, events: &mut Events) {
        for index in 0..self.envelope.n {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            let choice = ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            };
            self.push(choice, events);
        }
    }

    fn output(&mut self, output: Output, events: &mut Events) {
        match output {
            Output::Prompt { cached_tokens, .. } => self.usage.add_cached(cached_tokens),
            Output::Token { choice_idx, text, report } => self.push_token(choice_idx, text, &report, events),
            Output::Finished { choice_idx, text, reason, stop, .. } => {
                let content = (!text.is_empty()).then_some(text);
                let choice = ChunkChoice {
                    index: choice_idx,
                    delta: Delta { role: None, content },
                    logprobs: None,
                    finish_reason: Some(finish_reason(reason)),
                    stop_reason: Some(stop_reason(reason, stop)),
                    token_ids: None,
                };
                self.push(choice, events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.envelope.options.include_usage {
            events.push(&self.chunk(&[], Some(Some(self.usage))));
        }
        events.push_done();
    }
}
