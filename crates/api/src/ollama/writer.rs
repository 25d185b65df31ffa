//! Writes answers as JSON lines, or as one object.

use std::io;
use std::time::Duration;

use throng_core::request::FinishReason;

use super::ErrorObject;
use super::response::{End, Line, Message, Said, ToolCall};
use crate::answer::{Answer, AnswerEvent, AnswerShape, ChoiceEnd, Delta, Tally};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::spec::GenerationSpec;

/// View of an answer to chat or generate.
#[derive(Debug)]
pub(super) struct View {
    /// Whether the request was a chat.
    pub is_chat: bool,
}

impl AnswerView for View {
    fn shape(&self, _: &GenerationSpec) -> AnswerShape {
        AnswerShape::default()
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        let tally = facts.tally();
        let created = i64::try_from(facts.created_unix_s).ok();
        let created = created.and_then(|s| jiff::Timestamp::from_second(s).ok()).unwrap_or_default();
        let (created_at, is_chat) = (created.to_string(), self.is_chat);
        Box::new(Writer { is_chat, model: facts.model, created_at, tally, call: None, end: None })
    }
}

/// Writes an answer.
#[derive(Debug)]
struct Writer {
    is_chat: bool,
    model: String,
    created_at: String,
    tally: Tally,
    /// The call being collected: its name, and its arguments so far. Calls are sent whole.
    call: Option<(String, String)>,
    end: Option<ChoiceEnd>,
}

impl Writer {
    fn line<'a>(&'a self, content: &'a str, thinking: &'a str, calls: Vec<ToolCall<'a>>) -> Line<'a> {
        let said = match self.is_chat {
            true => {
                Said::Chat { message: Message { role: "assistant", content, thinking, tool_calls: calls } }
            }
            false => Said::Generate { response: content, thinking },
        };
        Line { model: &self.model, created_at: &self.created_at, said, done: false, end: None }
    }

    fn push_delta(&mut self, delta: Delta, out: &mut Events) {
        if !matches!(delta, Delta::CallArguments { .. }) {
            self.push_call(out);
        }
        match delta {
            Delta::Content(text) if text.is_empty() => {}
            Delta::Content(text) => out.push_line(&self.line(&text, "", Vec::new())),
            Delta::Reasoning(text) => out.push_line(&self.line("", &text, Vec::new())),
            Delta::CallBegin { name, .. } => self.call = Some((name, String::new())),
            Delta::CallArguments { fragment, .. } => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&fragment);
                }
            }
        }
    }

    fn push_call(&mut self, out: &mut Events) {
        if let Some((name, arguments)) = self.call.take() {
            out.push_line(&self.line("", "", vec![ToolCall::new(&name, &arguments)]));
        }
    }
}

fn end_of(end: Option<&ChoiceEnd>, tally: &Tally) -> End {
    let ns =
        |time: Option<Duration>| time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let between = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
    let moments = &tally.moments;
    let reason = end.map_or(FinishReason::Abort, |end| end.reason);
    End {
        done_reason: if reason == FinishReason::Length { "length" } else { "stop" },
        total_duration: ns(moments.last_token),
        load_duration: 0,
        prompt_eval_count: tally.prompt,
        prompt_eval_duration: ns(between(moments.first_step, moments.first_token)),
        eval_count: tally.output,
        eval_duration: ns(between(moments.first_token, moments.last_token)),
    }
}

impl AnswerWriter for Writer {
    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.tally.add(&event);
        match event {
            AnswerEvent::Token { deltas, .. } => {
                deltas.into_iter().for_each(|delta| self.push_delta(delta, out));
            }
            AnswerEvent::Finished { deltas, end, .. } => {
                deltas.into_iter().for_each(|delta| self.push_delta(delta, out));
                self.push_call(out);
                self.end = Some(end);
            }
            AnswerEvent::Prompt { .. }
            | AnswerEvent::Served(_)
            | AnswerEvent::Usage(_)
            | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        let end = Some(end_of(self.end.as_ref(), &self.tally));
        out.push_line(&Line { done: true, end, ..self.line("", "", Vec::new()) });
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        out.push_line(&ErrorObject::new(error));
    }

    /// Writes an empty piece. An empty line would not be JSON, and clients parse every line.
    fn ping(&mut self, _: &str, out: &mut Events) {
        out.push_line(&self.line("", "", Vec::new()));
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let choice = &answer.choices[0];
        let calls = choice.calls.iter().map(|call| ToolCall::new(&call.name, &call.arguments)).collect();
        let end = Some(end_of(choice.end.as_ref(), &answer.tally));
        let line = self.line(&choice.content, &choice.reasoning, calls);
        Ok(serde_json::to_writer(out, &Line { done: true, end, ..line })?)
    }
}
