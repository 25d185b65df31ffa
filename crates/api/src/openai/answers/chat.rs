//! Writes chat completions, whole or in chunks.

use std::io;

use super::{Response, ResponseOptions, finish, push_error, usage};
use crate::answer::{Answer, AnswerEvent, AnswerShape, Choice, ChoiceEnd, Delta, LogprobBytes};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::openai::chat_response::{
    AssistantMessage, CalledTool, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta,
};
use crate::openai::logprobs::{ChatLogprobs, PROMPT_LOGPROB_BYTES, PromptLogprobs};
use crate::spec::GenerationSpec;

/// Bytes of a token in `choices[].logprobs`.
const LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 96, alternative: 72 };

/// The client's options for a chat completion.
#[derive(Debug)]
pub(super) struct ChatView(ResponseOptions);

impl ChatView {
    pub fn new(options: ResponseOptions) -> Self {
        Self(options)
    }
}

impl AnswerView for ChatView {
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape {
        let options = &spec.options;
        AnswerShape {
            prompt_logprobs: options.prompt_logprobs.map(|_| PROMPT_LOGPROB_BYTES).into_iter().collect(),
            logprobs: options.logprobs.map(|_| LOGPROB_BYTES),
            ..self.0.shape()
        }
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        Box::new(ChatWriter { response: Response::new(self.0, facts), n_begun: 0 })
    }
}

/// Writes a chat completion.
#[derive(Debug)]
struct ChatWriter {
    response: Response,
    /// Number of choices whose first chunk has been sent.
    n_begun: usize,
}

impl ChatWriter {
    fn push<'a>(&'a self, choice: ChatChunkChoice<'a>, out: &mut Events) {
        let response = &self.response;
        out.push(&ChatChunk::new(&response.envelope(), choice, response.chunk_usage()));
    }

    fn push_token<'a>(&'a self, event: &'a AnswerEvent, out: &mut Events) {
        let AnswerEvent::Token { choice_idx, report, deltas, .. } = event else { return };
        let (response, index) = (&self.response, *choice_idx);
        let options = &response.options;
        let report = report.as_ref().filter(|_| options.logprobs || options.token_ids);
        if deltas.iter().all(says_nothing) && report.is_none() {
            return;
        }
        let bytes_of = |token| response.bytes_of(token);
        let spelling = response.spelling(&bytes_of);
        let logprobs = report
            .filter(|_| options.logprobs)
            .map(|report| ChatLogprobs { reports: std::slice::from_ref(report), spelling });
        let token_ids = report.filter(|_| options.token_ids).map(|report| [report.chosen.token]);
        let token_ids = token_ids.as_ref().map(<[_; 1]>::as_slice);
        // The first of a token's chunks carries the token's report.
        let delta = deltas.first().map(delta_of).unwrap_or_default();
        self.push(ChatChunkChoice::new(index, delta, None, logprobs, token_ids), out);
        deltas.iter().skip(1).for_each(|delta| self.push_delta(index, delta, out));
    }

    fn push_delta(&self, index: usize, delta: &Delta, out: &mut Events) {
        self.push(ChatChunkChoice::new(index, delta_of(delta), None, None, None), out);
    }

    fn push_end(&self, index: usize, deltas: &[Delta], end: &ChoiceEnd, out: &mut Events) {
        let (content, before) = match deltas {
            [before @ .., Delta::Content(text)] => {
                (Some(text.as_str()).filter(|text| !text.is_empty()), before)
            }
            all => (None, all),
        };
        before.iter().for_each(|delta| self.push_delta(index, delta, out));
        let delta = ChatDelta::content(content);
        self.push(ChatChunkChoice::new(index, delta, Some(finish(Some(end))), None, None), out);
    }
}

fn says_nothing(delta: &Delta) -> bool {
    matches!(delta, Delta::Content(text) if text.is_empty())
}

/// The addition to a message.
fn delta_of(delta: &Delta) -> ChatDelta<'_> {
    match delta {
        Delta::Content(text) => ChatDelta::content(Some(text)),
        Delta::Reasoning(text) => ChatDelta::reasoning(text),
        Delta::CallBegin { call_idx, id, name } => ChatDelta::call(CalledTool::begun(*call_idx, id, name)),
        Delta::CallArguments { call_idx, fragment } => ChatDelta::call(CalledTool::more(*call_idx, fragment)),
    }
}

fn message_of(choice: &Choice) -> AssistantMessage<'_> {
    let calls = choice.calls.iter().map(|call| CalledTool::whole(&call.id, &call.name, &call.arguments));
    AssistantMessage::new(&choice.content, &choice.reasoning, calls.collect())
}

impl AnswerWriter for ChatWriter {
    fn more(&mut self, out: &mut Events) -> bool {
        let (response, index) = (&self.response, self.n_begun);
        if index == response.options.n {
            return false;
        }
        self.n_begun += 1;
        let choice = ChatChunkChoice::first(index);
        let mut chunk = ChatChunk::new(&response.envelope(), choice, response.chunk_usage());
        if response.options.token_ids {
            chunk = chunk.with_prompt_token_ids(response.prompt_of(index));
        }
        out.push(&chunk);
        true
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.response.tally.add(&event);
        match &event {
            AnswerEvent::Token { .. } => self.push_token(&event, out),
            AnswerEvent::Finished { choice_idx, deltas, end } => self.push_end(*choice_idx, deltas, end, out),
            AnswerEvent::Prompt { .. }
            | AnswerEvent::Served(_)
            | AnswerEvent::Usage(_)
            | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        self.response.push_end(ChatChunk::of_usage, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        push_error(error, out);
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let response = &self.response;
        let options = &response.options;
        let bytes_of = |token| response.bytes_of(token);
        let spelling = response.spelling(&bytes_of);
        let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
            let logprobs = options.logprobs.then_some(ChatLogprobs { reports: &choice.reports, spelling });
            let token_ids = options.token_ids.then(|| choice.token_ids());
            ChatChoice::new(index, message_of(choice), finish(choice.end.as_ref()), logprobs, token_ids)
        });
        let choices = choices.collect();
        let prompt_logprobs = answer.prompts.first().filter(|_| options.prompt_logprobs);
        let prompt_logprobs =
            prompt_logprobs.map(|prompt| PromptLogprobs { reports: &prompt.logprobs, spelling });
        let prompt_ids = response.facts.prompts.first().filter(|_| options.token_ids).map(|prompt| &**prompt);
        let usage = usage(&answer.tally);
        let whole = ChatCompletion::new(&response.envelope(), choices, usage, prompt_logprobs, prompt_ids);
        Ok(serde_json::to_writer(out, &whole.with_timings(response.timings(&answer.tally)))?)
    }
}
