//! Text completions on the wire, whole and in chunks. Refuses to know tokenizing.

use serde::Serialize;
use throng_core::request::TokenId;
use throng_engine::TokenReport;

use super::logprobs::{PromptToken, TextLogprobs};
use super::{Envelope, StopReason, Usage, finish_reason, stop_reason, to_json, usage_field};
use crate::generation::{Answer, Choice, Events, Output, StreamFormat};

#[derive(Debug, Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [TextChoice],
    system_fingerprint: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
struct TextChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<PromptToken>>>,
}

/// What an answer repeats of its prompts.
#[derive(Debug, Clone, Default)]
pub(crate) struct EchoedPrompt {
    /// The prompts' texts; `None`: the answer does not begin with its prompt.
    pub texts: Option<Vec<String>>,
    /// Whether `prompt_logprobs` are shown under that name.
    pub shows_logprobs: bool,
}

/// The body of a whole text completion.
pub(crate) fn text_completion(envelope: &Envelope, echo: &EchoedPrompt, mut answer: Answer) -> Vec<u8> {
    let mut usage = Usage::new(&envelope.prompts);
    answer.prompts.iter().for_each(|prompt| usage.add_cached(prompt.cached_tokens));
    let choices = std::mem::take(&mut answer.choices);
    let choices: Vec<TextChoice> = choices
        .into_iter()
        .enumerate()
        .map(|(index, choice)| {
            usage.add_output(choice.tokens.len());
            let reports = &answer.prompts[index / envelope.n].logprobs;
            text_choice(envelope, echo, index, choice, reports)
        })
        .collect();
    let body = completion(envelope, &choices, Some(Some(usage)));
    to_json(&body)
}

fn completion<'a>(
    envelope: &'a Envelope,
    choices: &'a [TextChoice],
    usage: Option<Option<Usage>>,
) -> Completion<'a> {
    Completion {
        id: &envelope.id,
        object: "text_completion",
        created: envelope.created,
        model: &envelope.model,
        choices,
        system_fingerprint: None,
        usage,
    }
}

fn text_choice(
    envelope: &Envelope,
    echo: &EchoedPrompt,
    index: usize,
    choice: Choice,
    prompt_reports: &[TokenReport],
) -> TextChoice {
    let prompt = envelope.prompt_of(index);
    let (reason, stop) = choice.reason_and_stop();
    let echoed = echo.texts.as_ref().and_then(|texts| texts.get(index / envelope.n));
    let mut logprobs = envelope.text_logprobs();
    let mut text = String::new();
    if let Some(echoed) = echoed {
        if let Some(logprobs) = &mut logprobs {
            push_prompt_tokens(envelope, logprobs, prompt, prompt_reports);
        }
        text.push_str(echoed);
    }
    if let Some(logprobs) = &mut logprobs {
        for (offset, report) in &choice.tokens {
            envelope.push_text_token(logprobs, text.len() + offset, report.chosen.token, Some(report));
        }
    }
    let token_ids = envelope.returns_token_ids.then(|| choice.token_ids());
    text.push_str(&choice.text);
    TextChoice {
        index,
        text,
        logprobs,
        finish_reason: Some(finish_reason(reason)),
        stop_reason: stop_reason(reason, stop),
        token_ids,
        prompt_token_ids: envelope.returns_token_ids.then(|| prompt.to_vec()),
        prompt_logprobs: if echo.shows_logprobs { envelope.prompt_logprobs(prompt_reports) } else { None },
    }
}

/// The prompt's tokens before those of the answer. Their offsets count the text they spell, one after the other.
fn push_prompt_tokens(
    envelope: &Envelope,
    logprobs: &mut TextLogprobs,
    prompt: &[TokenId],
    reports: &[TokenReport],
) {
    let mut offset = 0;
    let reports = std::iter::once(None).chain(reports.iter().map(Some)).chain(std::iter::repeat(None));
    for (&token, report) in prompt.iter().zip(reports) {
        envelope.push_text_token(logprobs, offset, token, report);
        offset += envelope.tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.token_text(token).len());
    }
}

/// The chunks of a streamed text completion.
#[derive(Debug)]
pub(crate) struct CompletionFormat {
    envelope: Envelope,
    echo: EchoedPrompt,
    usage: Usage,
    /// Bytes of text each choice has had.
    offsets: Vec<usize>,
}

impl CompletionFormat {
    /// For the answer of this envelope.
    pub fn new(envelope: Envelope, echo: EchoedPrompt) -> Self {
        let usage = Usage::new(&envelope.prompts);
        let offsets = vec![0; envelope.prompts.len() * envelope.n];
        Self { envelope, echo, usage, offsets }
    }

    fn push(&self, choice: TextChoice, events: &mut Events) {
        let usage = usage_field(self.envelope.options, &self.usage);
        events.push(&completion(&self.envelope, &[choice], usage));
    }

    fn chunk(&mut self, index: usize, text: String) -> TextChoice {
        self.offsets[index] += text.len();
        TextChoice {
            index,
            text,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }

    fn push_echo(&mut self, prompt_idx: usize, reports: &[TokenReport], events: &mut Events) {
        let Some(text) = self.echo.texts.as_ref().and_then(|texts| texts.get(prompt_idx)).cloned() else {
            return;
        };
        for i in 0..self.envelope.n {
            let index = prompt_idx * self.envelope.n + i;
            let mut choice = self.chunk(index, text.clone());
            choice.logprobs = self.envelope.text_logprobs();
            if let Some(logprobs) = &mut choice.logprobs {
                push_prompt_tokens(&self.envelope, logprobs, self.envelope.prompt_of(index), reports);
            }
            self.push(choice, events);
        }
    }

    fn push_token(&mut self, index: usize, text: String, report: &TokenReport, events: &mut Events) {
        self.usage.add_output(1);
        let mut logprobs = self.envelope.text_logprobs();
        if let Some(logprobs) = &mut logprobs {
            let token = report.chosen.token;
            self.envelope.push_text_token(logprobs, self.offsets[index], token, Some(report));
        }
        let token_ids = self.envelope.returns_token_ids.then(|| vec![report.chosen.token]);
        if text.is_empty() && logprobs.is_none() && token_ids.is_none() {
            return;
        }
        let choice = TextChoice { logprobs, token_ids, ..self.chunk(index, text) };
        self.push(choice, events);
    }
}

impl StreamFormat for CompletionFormat {
    fn begin(&mut self, _: &mut Events) {}

    fn output(&mut self, output: Output, events: &mut Events) {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, logprobs } => {
                self.usage.add_cached(cached_tokens);
                self.push_echo(prompt_idx, &logprobs, events);
            }
            Output::Token { choice_idx, text, report } => self.push_token(choice_idx, text, &report, events),
            Output::Finished { choice_idx, text, reason, stop, .. } => {
                let mut choice = self.chunk(choice_idx, text);
                choice.finish_reason = Some(finish_reason(reason));
                choice.stop_reason = stop_reason(reason, stop);
                self.push(choice, events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.envelope.options.include_usage {
            events.push(&completion(&self.envelope, &[], Some(Some(self.usage))));
        }
        events.push_done();
    }
}
