//! Answers as responses, whole and as a stream of numbered events.

use std::cell::Cell;
use std::io;

use throng_core::fleet::replica::TokenReport;
use throng_core::request::FinishReason;

use super::item::{Content, FunctionCall, Item, ItemStatus, Side, Thought};
use super::logprobs::{logprobs_of, of_text};
use super::open_item::OpenItem;
use super::response::{
    Choice, Effort, Event, Failure, Format, Metadata, Named, Numbered, Part, Place, Reason, ResponseObject,
    Status, Text, Usage,
};
use super::slot::WholeResponse;
use super::view::ResponseView;
use crate::answer::{Answer, AnswerEvent, AnswerShape, ChoiceEnd, Delta, LogprobBytes, Tally};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::spec::GenerationSpec;

/// Bytes of a token among the log-probabilities of a text, which a stream tells twice.
const LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 96, alternative: 72 };

impl AnswerView for ResponseView {
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape {
        AnswerShape { logprobs: spec.options.logprobs.map(|_| LOGPROB_BYTES), ..AnswerShape::default() }
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        Box::new(ResponseWriter::new(*self, facts))
    }
}

/// Writes a response.
#[derive(Debug)]
pub(super) struct ResponseWriter {
    view: ResponseView,
    facts: AnswerFacts,
    tally: Tally,
    /// The items that are done.
    items: Vec<Item>,
    /// The item that is being written.
    open: Option<OpenItem>,
    n_calls: usize,
    /// Tokens whose text is held back, as the rest of a character or of a stop string may follow.
    waiting: Vec<TokenReport>,
    n_events: Cell<u64>,
}

/// How a response stands.
#[derive(Debug, Clone, Copy)]
struct Standing<'a> {
    status: Status,
    reason: Option<&'static str>,
    failure: Option<&'a ApiError>,
}

impl<'a> Standing<'a> {
    const RUNNING: Self = Self { status: Status::InProgress, reason: None, failure: None };

    fn at(end: Option<&ChoiceEnd>) -> Self {
        let reason = end.and_then(|end| match end.reason {
            _ if end.is_filtered => Some("content_filter"),
            FinishReason::Length => Some("max_output_tokens"),
            _ => None,
        });
        let status = if reason.is_some() { Status::Incomplete } else { Status::Completed };
        Self { status, reason, failure: None }
    }

    fn failed(error: &'a ApiError) -> Self {
        Self { status: Status::Failed, reason: None, failure: Some(error) }
    }

    /// The status of an item that is open at the end.
    fn of_last_item(self) -> ItemStatus {
        if self.status == Status::Completed { ItemStatus::Completed } else { ItemStatus::Incomplete }
    }
}

impl ResponseWriter {
    pub fn new(view: ResponseView, facts: AnswerFacts) -> Self {
        Self {
            tally: Tally::new(facts.n_prompt_tokens()),
            view,
            facts,
            items: Vec::new(),
            open: None,
            n_calls: 0,
            waiting: Vec::new(),
            n_events: Cell::new(0),
        }
    }

    fn response<'a>(
        &'a self,
        standing: Standing<'a>,
        output: &'a [Item],
        tally: &Tally,
    ) -> ResponseObject<'a> {
        let ResponseView { ids, echo, .. } = &self.view;
        let Standing { status, reason, failure } = standing;
        let seconds = tally.moments.last_token.map_or(0, |since| since.as_secs());
        ResponseObject {
            id: ids.response(),
            object: "response",
            created_at: self.facts.created_unix_s,
            status,
            background: echo.background,
            completed_at: (status == Status::Completed).then(|| self.facts.created_unix_s + seconds),
            conversation: echo.conversation.as_deref().map(|id| Named { id }),
            error: failure.map(Failure::from),
            incomplete_details: reason.map(|reason| Reason { reason }),
            instructions: echo.instructions.as_deref(),
            max_output_tokens: echo.max_output_tokens,
            max_tool_calls: echo.max_tool_calls,
            model: &self.facts.model,
            output,
            parallel_tool_calls: echo.parallel_tool_calls,
            previous_response_id: echo.previous_response_id.as_deref(),
            prompt_cache_key: echo.prompt_cache_key.as_deref(),
            reasoning: Effort { effort: echo.effort, summary: echo.summary },
            safety_identifier: echo.safety_identifier.as_deref(),
            service_tier: match echo.service_tier {
                Some("priority" | "fast" | "ultrafast") => "priority",
                Some("flex") => "flex",
                _ => "default",
            },
            store: echo.store,
            temperature: self.facts.temperature,
            text: Text {
                format: echo.format.as_deref().map_or(Format::Plain { r#type: "text" }, Format::Sent),
                verbosity: echo.verbosity.unwrap_or("medium"),
            },
            tool_choice: echo.tool_choice.as_deref().map_or(Choice::Word("auto"), Choice::Sent),
            tools: &echo.tools,
            top_logprobs: echo.top_logprobs,
            top_p: self.facts.top_p,
            presence_penalty: echo.presence_penalty,
            frequency_penalty: echo.frequency_penalty,
            truncation: echo.truncation,
            usage: (status != Status::InProgress).then(|| Usage::from(tally)),
            user: echo.user.as_deref(),
            metadata: echo.metadata.as_deref().map_or(Metadata::None {}, Metadata::Sent),
        }
    }

    fn push(&self, event: &Event<'_>, out: &mut Events) {
        let sequence_number = self.n_events.get();
        out.push_named(event.name(), &Numbered { event, sequence_number });
        self.n_events.set(sequence_number + 1);
    }

    fn begin(&self, out: &mut Events) -> bool {
        if self.n_events.get() > 0 {
            return false;
        }
        let response = || self.response(Standing::RUNNING, &[], &self.tally);
        self.push(&Event::Created { response: response() }, out);
        self.push(&Event::InProgress { response: response() }, out);
        self.leave(&response(), &[]);
        true
    }

    fn place_of<'a>(&self, open: &'a OpenItem) -> Place<'a> {
        Place { item_id: open.id(), output_index: self.items.len() }
    }

    /// Begins an item; another one that is open ends.
    fn open(&mut self, open: OpenItem, out: &mut Events) {
        self.close(ItemStatus::Completed, out);
        let mut open = open;
        open.set_id(self.view.ids.item(open.prefix(), Side::Output, self.items.len()));
        self.push(&Event::ItemAdded { output_index: self.items.len(), item: &open.begun() }, out);
        let place = self.place_of(&open);
        match &open {
            OpenItem::Message { .. } => {
                let part = Part::Content(&Content::output(String::new()));
                self.push(&Event::PartAdded { place, content_index: 0, part }, out);
            }
            OpenItem::Reasoning { .. } if self.view.shows_summary => {
                let part = Part::Thought(&Thought::SummaryText { text: String::new() });
                self.push(&Event::SummaryPartAdded { place, summary_index: 0, part }, out);
            }
            OpenItem::Reasoning { .. } => {
                let part = Part::Thought(&Thought::ReasoningText { text: String::new() });
                self.push(&Event::PartAdded { place, content_index: 0, part }, out);
            }
            OpenItem::Call { .. } => {}
        }
        self.open = Some(open);
    }

    /// Ends the open item.
    fn close(&mut self, status: ItemStatus, out: &mut Events) {
        let Some(open) = self.open.take() else { return };
        let item = open.done(status, &self.view);
        let output_index = self.items.len();
        let place = Place { item_id: item.id(), output_index };
        match &item {
            Item::Message(message) => {
                for (content_index, part) in message.content.iter().enumerate() {
                    if let Content::OutputText { text, logprobs, .. } = part {
                        self.push(&Event::TextDone { place, content_index, text, logprobs }, out);
                    }
                    self.push(&Event::PartDone { place, content_index, part: Part::Content(part) }, out);
                }
            }
            Item::Reasoning(reasoning) => {
                for (content_index, part) in reasoning.content.iter().enumerate() {
                    self.push(&Event::ReasoningDone { place, content_index, text: part.text() }, out);
                    self.push(&Event::PartDone { place, content_index, part: Part::Thought(part) }, out);
                }
                for (summary_index, part) in reasoning.summary.iter().enumerate() {
                    self.push(&Event::SummaryDone { place, summary_index, text: part.text() }, out);
                    self.push(
                        &Event::SummaryPartDone { place, summary_index, part: Part::Thought(part) },
                        out,
                    );
                }
            }
            Item::FunctionCall(call) => {
                let (name, arguments) = (&call.name, &call.arguments);
                self.push(&Event::ArgumentsDone { place, name, arguments }, out);
            }
            Item::CustomToolCall(call) => {
                // Its text is known once the JSON around it is whole.
                self.push(&Event::InputDelta { place, delta: &call.input }, out);
                self.push(&Event::InputDone { place, input: &call.input }, out);
            }
            _ => {}
        }
        self.push(&Event::ItemDone { output_index, item: &item }, out);
        self.items.push(item);
    }

    fn push_delta(&mut self, delta: Delta, out: &mut Events) {
        match delta {
            Delta::Content(text) if text.is_empty() => {}
            Delta::Content(text) => {
                if !matches!(self.open, Some(OpenItem::Message { .. })) {
                    self.open(OpenItem::message(), out);
                }
                let logprobs = logprobs_of(&std::mem::take(&mut self.waiting), &self.facts);
                if let Some(open) = &self.open {
                    let (place, delta) = (self.place_of(open), text.as_str());
                    self.push(&Event::TextDelta { place, content_index: 0, delta, logprobs: &logprobs }, out);
                }
                if let Some(OpenItem::Message { text: all, logprobs: so_far, .. }) = &mut self.open {
                    all.push_str(&text);
                    so_far.extend(logprobs);
                }
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(OpenItem::Reasoning { .. })) {
                    self.open(OpenItem::reasoning(), out);
                }
                if let Some(open) = &self.open {
                    let (place, delta) = (self.place_of(open), text.as_str());
                    let event = match self.view.shows_summary {
                        true => Event::SummaryDelta { place, summary_index: 0, delta },
                        false => Event::ReasoningDelta { place, content_index: 0, delta },
                    };
                    self.push(&event, out);
                }
                if let Some(OpenItem::Reasoning { text: all, .. }) = &mut self.open {
                    all.push_str(&text);
                }
            }
            Delta::CallBegin { id, name, .. } => {
                let call = self.call(self.n_calls, id, name);
                self.n_calls += 1;
                self.open(call, out);
            }
            // The pieces of a call come one after another, before anything else.
            Delta::CallArguments { fragment, .. } => {
                if let Some(open @ OpenItem::Call { is_custom: false, .. }) = &self.open {
                    self.push(&Event::ArgumentsDelta { place: self.place_of(open), delta: &fragment }, out);
                }
                if let Some(OpenItem::Call { call, .. }) = &mut self.open {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }

    /// The call with the number `n`, which keeps the id that an earlier attempt gave it.
    fn call(&self, n: usize, id: String, name: String) -> OpenItem {
        let call_id = self.view.call_ids.get(n).cloned().unwrap_or(id);
        let is_custom = self.view.custom_tools.contains(&name);
        let namespace = self.view.namespaces.get(&name).cloned();
        let (id, arguments, status) = (String::new(), String::new(), ItemStatus::InProgress);
        OpenItem::Call { call: FunctionCall { id, call_id, name, namespace, arguments, status }, is_custom }
    }

    /// Leaves the response for who keeps it.
    fn leave(&self, response: &ResponseObject<'_>, output: &[Item]) {
        if self.view.echo.store {
            let json = serde_json::to_vec(response).expect("responses are plain data with text keys");
            self.view.slot.put(WholeResponse {
                json,
                has_ended: response.status != Status::InProgress,
                output: output.to_vec(),
            });
        }
    }

    /// The items of a whole answer, in the order in which a stream has them for most models.
    fn items_of(&self, answer: &Answer, last: ItemStatus) -> Vec<Item> {
        let choice = &answer.choices[0];
        let mut open = Vec::new();
        if !choice.reasoning.is_empty() {
            open.push(OpenItem::Reasoning { id: String::new(), text: choice.reasoning.clone() });
        }
        if !choice.content.is_empty() {
            let reports = of_text(choice, self.view.shows_logprobs);
            let logprobs = logprobs_of(reports, &self.facts);
            open.push(OpenItem::Message { id: String::new(), text: choice.content.clone(), logprobs });
        }
        for (n, call) in choice.calls.iter().enumerate() {
            let mut begun = self.call(n, call.id.clone(), call.name.clone());
            if let OpenItem::Call { call: open, .. } = &mut begun {
                open.arguments.clone_from(&call.arguments);
            }
            open.push(begun);
        }
        let n = open.len();
        let done = |(idx, mut open): (usize, OpenItem)| {
            open.set_id(self.view.ids.item(open.prefix(), Side::Output, idx));
            open.done(if idx + 1 == n { last } else { ItemStatus::Completed }, &self.view)
        };
        open.into_iter().enumerate().map(done).collect()
    }
}

impl AnswerWriter for ResponseWriter {
    fn more(&mut self, out: &mut Events) -> bool {
        self.begin(out)
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.tally.add(&event);
        match event {
            AnswerEvent::Token { report, is_reasoning, deltas, .. } => {
                if self.view.shows_logprobs && !is_reasoning {
                    self.waiting.extend(report);
                }
                for delta in deltas {
                    // Tokens of calls and marks are no text.
                    if !matches!(delta, Delta::Content(_)) {
                        self.waiting.clear();
                    }
                    self.push_delta(delta, out);
                }
            }
            AnswerEvent::Finished { deltas, end, .. } => {
                deltas.into_iter().for_each(|delta| self.push_delta(delta, out));
                let standing = Standing::at(Some(&end));
                self.close(standing.of_last_item(), out);
                let response = self.response(standing, &self.items, &self.tally);
                self.leave(&response, &self.items);
                let last = match standing.status {
                    Status::Incomplete => Event::Incomplete { response },
                    _ => Event::Completed { response },
                };
                self.push(&last, out);
            }
            AnswerEvent::Prompt { .. } | AnswerEvent::Usage(_) | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        out.push_done();
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        self.begin(out);
        let told = Event::Error { code: error.code(), message: error.message(), param: error.param() };
        self.push(&told, out);
        let response = self.response(Standing::failed(error), &self.items, &self.tally);
        self.leave(&response, &self.items);
        self.push(&Event::Failed { response }, out);
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let standing = Standing::at(answer.choices[0].end.as_ref());
        let items = self.items_of(answer, standing.of_last_item());
        let response = self.response(standing, &items, &answer.tally);
        self.leave(&response, &items);
        Ok(serde_json::to_writer(out, &response)?)
    }
}
