//! Writes answers to `POST /infill`, whole or in pieces.

use std::io;

use throng_core::request::FinishReason;

use super::ErrorObject;
use super::response::{End, InfillAnswer};
use crate::answer::{Answer, AnswerEvent, AnswerShape, ChoiceEnd, Tally};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::spec::GenerationSpec;

/// View of an answer. This API has no options for it.
#[derive(Debug)]
pub(super) struct InfillView;

impl AnswerView for InfillView {
    fn shape(&self, _: &GenerationSpec) -> AnswerShape {
        AnswerShape::default()
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        let tally = facts.tally();
        Box::new(InfillWriter { model: facts.model, tally, end: None })
    }
}

/// Writes an answer.
#[derive(Debug)]
struct InfillWriter {
    model: String,
    tally: Tally,
    end: Option<ChoiceEnd>,
}

impl InfillWriter {
    fn piece<'a>(&'a self, content: &'a str, tally: &Tally) -> InfillAnswer<'a> {
        let (tokens_predicted, tokens_evaluated) = (tally.output, tally.prompt);
        InfillAnswer {
            index: 0,
            content,
            tokens: [],
            stop: false,
            tokens_predicted,
            tokens_evaluated,
            end: None,
        }
    }

    fn last<'a>(&'a self, content: &'a str, end: Option<&'a ChoiceEnd>, tally: &Tally) -> InfillAnswer<'a> {
        let word = end.and_then(|end| end.stop.as_deref());
        let stop_type = match end.map(|end| end.reason) {
            _ if word.is_some() => "word",
            Some(FinishReason::Length) => "limit",
            _ => "eos",
        };
        let end = End {
            model: &self.model,
            truncated: false,
            stop_type,
            stopping_word: word.unwrap_or_default(),
            tokens_cached: tally.cached,
            timings: tally.into(),
        };
        InfillAnswer { stop: true, end: Some(end), ..self.piece(content, tally) }
    }
}

impl AnswerWriter for InfillWriter {
    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.tally.add(&event);
        let (deltas, end) = match event {
            AnswerEvent::Token { deltas, .. } => (deltas, None),
            AnswerEvent::Finished { deltas, end, .. } => (deltas, Some(end)),
            AnswerEvent::Prompt { .. }
            | AnswerEvent::Served(_)
            | AnswerEvent::Usage(_)
            | AnswerEvent::Failed(_) => return,
        };
        let text: String = deltas.iter().filter_map(|delta| delta.content()).collect();
        if !text.is_empty() {
            out.push(&self.piece(&text, &self.tally));
        }
        self.end = end.or(self.end.take());
    }

    fn end(&mut self, out: &mut Events) {
        out.push(&self.last("", self.end.as_ref(), &self.tally));
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        out.push(&ErrorObject::new(error));
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let choice = &answer.choices[0];
        let last = self.last(&choice.content, choice.end.as_ref(), &answer.tally);
        Ok(serde_json::to_writer(out, &last)?)
    }
}
