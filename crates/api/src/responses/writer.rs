//! Answers as responses, whole and as a stream of numbered events.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;

use throng_core::fleet::replica::TokenReport;
use throng_core::request::TokenId;

use super::item::{Content, FunctionCall, Item, ItemStatus, Side, Thought};
use super::logprobs::{logprobs_of, of_text};
use super::open_item::OpenItem;
use super::response::{
    Choice, Effort, Event, Failure, Format, Metadata, Named, Numbered, Part, Place, Reason, ResponseObject,
    Standing, Status, Text, Usage,
};
use super::served;
use super::slot::WholeResponse;
use super::socket::Framing;
use super::view::ResponseView;
use crate::answer::{Answer, AnswerEvent, CallFailure, Choice as AnswerChoice, Delta, ServedEvent, Tally};
use crate::dialect::{AnswerFacts, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;

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
    /// Number of the model's turn.
    turn: u32,
    /// The places of the calls of this turn that the server runs, by their numbers.
    served: BTreeMap<u32, usize>,
    /// Tokens whose text is held back, as the rest of a character or of a stop string may follow.
    waiting: Vec<TokenReport>,
    /// Tokens of the model's first turn, if they are kept.
    generated: Vec<TokenId>,
    n_events: Cell<u64>,
}

impl ResponseWriter {
    pub fn new(view: ResponseView, facts: AnswerFacts) -> Self {
        Self {
            tally: facts.tally(),
            view,
            facts,
            items: Vec::new(),
            open: None,
            n_calls: 0,
            turn: 0,
            served: BTreeMap::new(),
            waiting: Vec::new(),
            generated: Vec::new(),
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
        match &self.view.framing {
            Framing::ServerSent => {
                out.push_named(event.name(), &Numbered { event, sequence_number, stream_id: None });
            }
            Framing::Messages(lane) => {
                out.push_line(&Numbered { event, sequence_number, stream_id: lane.name() });
            }
        }
        self.n_events.set(sequence_number + 1);
    }

    fn begin(&mut self, out: &mut Events) -> bool {
        if self.n_events.get() > 0 {
            return false;
        }
        let response = || self.response(Standing::RUNNING, &[], &self.tally);
        self.push(&Event::Created { response: response() }, out);
        self.push(&Event::InProgress { response: response() }, out);
        self.leave(&response(), &[], &[]);
        for item in std::mem::take(&mut self.view.first) {
            self.push_first(item, out);
        }
        true
    }

    /// Writes an item that the response begins with, like a generated one.
    fn push_first(&mut self, mut item: Item, out: &mut Events) {
        let output_index = self.items.len();
        item.set_id(self.view.ids.item(item.prefix(), Side::Output, output_index));
        self.push(&Event::ItemAdded { output_index, item: &served::begun(&item) }, out);
        let place = Place { item_id: item.id(), output_index };
        served::events_of(&item, place).iter().for_each(|event| self.push(event, out));
        self.push(&Event::ItemDone { output_index, item: &item }, out);
        self.items.push(item);
    }

    /// Writes the result of a call that the server ran.
    fn end_call(&mut self, call_idx: u32, result: Result<String, CallFailure>, out: &mut Events) {
        let Some(output_index) = self.served.remove(&call_idx) else { return };
        let Item::McpCall(mut call) = self.items[output_index].clone() else { return };
        call.settle(result);
        let place = Place { item_id: &call.id, output_index };
        self.push(&served::end_of(&call, place), out);
        let item = Item::McpCall(call);
        self.push(&Event::ItemDone { output_index, item: &item }, out);
        self.items[output_index] = item;
    }

    /// Ends calls that have no result: the response ends before they run, or while they do.
    fn end_unanswered(&mut self, out: &mut Events) {
        for output_index in std::mem::take(&mut self.served).into_values() {
            let Item::McpCall(call) = &mut self.items[output_index] else { continue };
            call.cut();
            self.push(&Event::ItemDone { output_index, item: &self.items[output_index] }, out);
        }
    }

    fn push_served(&mut self, event: ServedEvent, out: &mut Events) {
        match event {
            ServedEvent::TurnEnded { deltas, .. } => {
                deltas.into_iter().for_each(|delta| self.push_delta(delta, out));
                self.close(ItemStatus::Completed, out);
            }
            ServedEvent::CallEnded { call_idx, result } => self.end_call(call_idx, result, out),
            ServedEvent::TurnBegan { .. } => self.turn += 1,
        }
    }

    fn place_of<'a>(&self, open: &'a OpenItem) -> Place<'a> {
        Place { item_id: open.id(), output_index: self.items.len() }
    }

    /// Begins an item, after ending the open one.
    fn open(&mut self, open: OpenItem, out: &mut Events) {
        self.close(ItemStatus::Completed, out);
        let mut open = open;
        open.set_id(self.view.ids.item_of_turn(open.prefix(), self.items.len(), self.turn));
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
            OpenItem::Served { .. } => self.push(&Event::McpCallInProgress { place }, out),
            OpenItem::Call { .. } | OpenItem::Approval(_) => {}
        }
        self.open = Some(open);
    }

    /// Ends the open item.
    fn close(&mut self, status: ItemStatus, out: &mut Events) {
        let Some(open) = self.open.take() else { return };
        let runs = matches!(open, OpenItem::Served { .. }) && status == ItemStatus::Completed;
        if let (OpenItem::Served { call_idx, .. }, true) = (&open, runs) {
            self.served.insert(*call_idx, self.items.len());
        }
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
            Item::McpCall(call) => {
                self.push(&Event::McpArgumentsDone { place, arguments: &call.arguments }, out);
            }
            _ => {}
        }
        // A call that runs is done once it has a result.
        if !runs {
            self.push(&Event::ItemDone { output_index, item: &item }, out);
        }
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
            Delta::CallBegin { call_idx, id, name } => {
                let call = self.call((self.n_calls, call_idx), id, name);
                self.n_calls += 1;
                self.open(call, out);
            }
            // The pieces of a call come one after another, before anything else.
            Delta::CallArguments { fragment, .. } => {
                if let Some(open @ OpenItem::Call { is_custom: false, .. }) = &self.open {
                    self.push(&Event::ArgumentsDelta { place: self.place_of(open), delta: &fragment }, out);
                }
                if let Some(open @ OpenItem::Served { .. }) = &self.open {
                    self.push(
                        &Event::McpArgumentsDelta { place: self.place_of(open), delta: &fragment },
                        out,
                    );
                }
                if let Some(arguments) = self.open.as_mut().and_then(OpenItem::arguments) {
                    arguments.push_str(&fragment);
                }
            }
        }
    }

    /// The call with the number `n` among all and `call_idx` in its turn, which keeps the id that an earlier
    /// attempt gave it.
    fn call(&self, (n, call_idx): (usize, u32), id: String, name: String) -> OpenItem {
        if let Some(tool) = self.view.served_tools.get(&name) {
            return OpenItem::served(tool, call_idx);
        }
        let call_id = self.view.call_ids.get(n).cloned().unwrap_or(id);
        let is_custom = self.view.custom_tools.contains(&name);
        let namespace = self.view.namespaces.get(&name).cloned();
        let (id, arguments, status) = (String::new(), String::new(), ItemStatus::InProgress);
        OpenItem::Call { call: FunctionCall { id, call_id, name, namespace, arguments, status }, is_custom }
    }

    /// Whether the events are messages of a WebSocket connection.
    fn is_message(&self) -> bool {
        self.view.framing != Framing::ServerSent
    }

    /// Writes the last event, which has the outcome of the response.
    fn finish(&mut self, standing: Standing<'_>, out: &mut Events) {
        self.close(standing.of_last_item(), out);
        self.end_unanswered(out);
        let response = self.response(standing, &self.items, &self.tally);
        self.leave(&response, &self.items, &self.generated);
        let last = match standing.status {
            Status::Incomplete => Event::Incomplete { response },
            _ => Event::Completed { response },
        };
        self.push(&last, out);
    }

    /// Leaves the response for who keeps it, with the tokens of the model's first turn.
    fn leave(&self, response: &ResponseObject<'_>, output: &[Item], generated: &[TokenId]) {
        if self.view.echo.store || self.is_message() {
            let json = serde_json::to_vec(response).expect("responses are plain data with text keys");
            self.view.slot.put(WholeResponse {
                json,
                has_ended: response.status != Status::InProgress,
                has_failed: response.status == Status::Failed,
                output: output.to_vec(),
                trail: self.view.trail_of(&self.facts, generated),
            });
        }
    }

    /// The items of a whole answer, in the order in which a stream has them for most models.
    fn items_of(&self, answer: &Answer, last: ItemStatus) -> Vec<Item> {
        let mut items = Vec::new();
        for mut item in self.view.first.iter().cloned() {
            item.set_id(self.view.ids.item(item.prefix(), Side::Output, items.len()));
            items.push(item);
        }
        for (turn, past) in (0..).zip(&answer.turns) {
            let first_call = self.add_items(&past.choice, turn, ItemStatus::Completed, &mut items);
            for (call_idx, result) in &past.results {
                if let Some(Item::McpCall(call)) = items.get_mut(first_call + *call_idx as usize) {
                    call.settle(result.clone());
                }
            }
        }
        self.add_items(&answer.choices[0], answer.turns.len() as u32, last, &mut items);
        for item in &mut items {
            let Item::McpCall(call) = item else { continue };
            call.cut();
        }
        items
    }

    /// Adds the items of a turn of the model. Returns the place of its first call.
    fn add_items(&self, choice: &AnswerChoice, turn: u32, last: ItemStatus, items: &mut Vec<Item>) -> usize {
        let mut open = Vec::new();
        if !choice.reasoning.is_empty() {
            open.push(OpenItem::Reasoning { id: String::new(), text: choice.reasoning.clone() });
        }
        if !choice.content.is_empty() {
            let reports = of_text(choice, self.view.shows_logprobs);
            let logprobs = logprobs_of(reports, &self.facts);
            open.push(OpenItem::Message { id: String::new(), text: choice.content.clone(), logprobs });
        }
        let first_call = items.len() + open.len();
        for (n, call) in choice.calls.iter().enumerate() {
            let mut begun = self.call((n, n as u32), call.id.clone(), call.name.clone());
            if let Some(arguments) = begun.arguments() {
                arguments.clone_from(&call.arguments);
            }
            open.push(begun);
        }
        let n = open.len();
        for (place, mut open) in open.into_iter().enumerate() {
            open.set_id(self.view.ids.item_of_turn(open.prefix(), items.len(), turn));
            let status = if place + 1 == n { last } else { ItemStatus::Completed };
            items.push(open.done(status, &self.view));
        }
        first_call
    }
}

impl AnswerWriter for ResponseWriter {
    fn more(&mut self, out: &mut Events) -> bool {
        self.begin(out)
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.tally.add(&event);
        if let AnswerEvent::Token { report: Some(report), .. } = &event
            && self.turn == 0
            && self.facts.trail.is_some()
        {
            self.generated.push(report.chosen.token);
        }
        match event {
            AnswerEvent::Token { .. } if self.view.is_warmup => {}
            AnswerEvent::Finished { .. } if self.view.is_warmup => self.finish(Standing::at(None), out),
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
                self.finish(Standing::at(Some(&end)), out);
            }
            AnswerEvent::Served(event) => self.push_served(event, out),
            AnswerEvent::Prompt { .. } | AnswerEvent::Usage(_) | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        if !self.is_message() {
            out.push_done();
        }
    }

    fn ping(&mut self, comment: &str, out: &mut Events) {
        // A connection of messages has pings of its own.
        if !self.is_message() {
            out.push_comment(comment);
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        self.begin(out);
        // Clients of a connection of messages take the first event that tells of an end for the last one.
        if !self.is_message() {
            let told = Event::Error { code: error.code(), message: error.message(), param: error.param() };
            self.push(&told, out);
        }
        self.end_unanswered(out);
        let response = self.response(Standing::failed(error), &self.items, &self.tally);
        self.leave(&response, &self.items, &[]);
        self.push(&Event::Failed { response }, out);
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let standing = Standing::at(answer.choices[0].end.as_ref());
        let items = self.items_of(answer, standing.of_last_item());
        let response = self.response(standing, &items, &answer.tally);
        let first = answer.turns.first().map_or(&answer.choices[0], |turn| &turn.choice);
        self.leave(&response, &items, &first.token_ids());
        Ok(serde_json::to_writer(out, &response)?)
    }
}
