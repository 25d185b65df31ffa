//! The tools of one response: those that its model is offered, the calls that run here, and their results.
//! Follows the events of the answer; does not know how models are asked.

mod begin;
mod call;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_api::ApiError;
use throng_api::answer::{
    AnswerEvent, CallFailure, Choice, ChoiceEnd, Delta, ServedEvent, Tally, TokenCounts,
};
use throng_api::responses::{CreateRequest, Item, ToolDefinition, TurnContext};
use throng_core::request::FinishReason;

pub use self::call::{CallRecord, Called, PendingCall};
use self::turn::items_of;
use crate::server::ToolServer;

/// A tool that the model is offered.
#[derive(Debug, Clone)]
struct Route {
    server: Arc<ToolServer>,
    tool: String,
    needs_approval: bool,
}

/// The tools of one response.
#[derive(Debug, Clone)]
pub struct Session {
    request: CreateRequest,
    context: TurnContext,
    /// The tools by their names for the model.
    routes: BTreeMap<String, Route>,
    max_calls: u32,
    max_turns: u32,
    n_calls: u32,
    /// Bytes of the items so far.
    n_bytes: usize,
    /// Texts and calls of the current turn.
    turn: Choice,
    /// Index of the first approved call among the items that the response begins with; from the first turn's
    /// end on, index of the first call of the last turn among the items of all turns.
    first_call: usize,
    tally: Tally,
    /// Tokens of the turns before, for engines that count only their own tokens.
    before: TokenCounts,
    /// End of the turn whose calls are running.
    end: Option<ChoiceEnd>,
    /// Whether the turn also has calls that the client has to answer.
    is_last: bool,
    /// Error that the response fails with: a server does not list its tools.
    failure: Option<ApiError>,
}

/// An event of the model after the session has followed it.
#[derive(Debug)]
pub enum Observed {
    /// An event for the client.
    Event(AnswerEvent),
    /// The turn has ended; these calls run before the next one.
    Calls(AnswerEvent, Vec<PendingCall>),
}

/// Next step after the calls of a turn.
#[derive(Debug)]
pub enum TurnOutcome {
    /// The model takes another turn.
    Next,
    /// The end of the response.
    End(AnswerEvent),
}

/// Bytes of the texts of an item.
fn size_of(item: &Item) -> usize {
    match item {
        Item::McpCall(call) => call.arguments.len() + call.output.as_ref().map_or(0, String::len),
        Item::McpListTools(list) => list.tools.iter().map(ToolDefinition::n_bytes).sum(),
        Item::Message(message) => message.content.iter().map(|part| part.text().len()).sum(),
        Item::Reasoning(reasoning) => reasoning.content.iter().map(|part| part.text().len()).sum(),
        Item::FunctionCall(call) => call.arguments.len(),
        _ => 0,
    }
}

/// Bytes of the result of a call.
fn size_of_result(result: &Result<String, CallFailure>) -> usize {
    result.as_ref().map_or_else(|failure| failure.to_string().len(), String::len)
}

impl Session {
    /// A copy of all inputs of the next turn's request: `request.into_request(&context)`.
    pub fn next_request(&self) -> (CreateRequest, TurnContext) {
        (self.request.clone(), self.context.clone())
    }

    /// Bytes of the items so far, which are held until the response ends.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The error that a streamed response fails with after its first items: a server does not list its
    /// tools. No call runs for it.
    pub fn failure(&self) -> Option<&ApiError> {
        self.failure.as_ref()
    }

    /// Follows an event of the model.
    pub fn observe(&mut self, event: AnswerEvent) -> Observed {
        let event = match event {
            AnswerEvent::Usage(counts) => AnswerEvent::Usage(self.with_turns_before(counts)),
            other => other,
        };
        self.tally.add(&event);
        match event {
            AnswerEvent::Token { ref deltas, .. } => {
                self.add_to_turn(deltas);
                Observed::Event(event)
            }
            AnswerEvent::Finished { choice_idx, deltas, end } => {
                self.add_to_turn(&deltas);
                let calls = match end.reason {
                    FinishReason::Stop { .. } if !end.is_filtered => self.take_turn(),
                    _ => Vec::new(),
                };
                if calls.is_empty() {
                    return Observed::Event(AnswerEvent::Finished { choice_idx, deltas, end });
                }
                self.end = Some(end.clone());
                Observed::Calls(AnswerEvent::Served(ServedEvent::TurnEnded { deltas, end }), calls)
            }
            _ => Observed::Event(event),
        }
    }

    fn add_to_turn(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.turn.add(delta);
        }
    }

    /// Puts the result of a call that the client has approved into its item.
    pub fn settle_approved(&mut self, called: Called) {
        self.n_bytes += size_of_result(&called.result);
        let served = self.context.served.get_or_insert_default();
        if let Some(Item::McpCall(call)) = served.first.get_mut(self.first_call + called.call_idx as usize) {
            call.settle(called.result);
        }
    }

    /// Puts the result of a call into its item, and returns the event for it.
    pub fn settle(&mut self, call_idx: u32, result: Result<String, CallFailure>) -> AnswerEvent {
        self.n_bytes += size_of_result(&result);
        let served = self.context.served.get_or_insert_default();
        if let Some(Item::McpCall(call)) = served.turns.get_mut(self.first_call + call_idx as usize) {
            call.settle(result.clone());
        }
        AnswerEvent::Served(ServedEvent::CallEnded { call_idx, result })
    }

    /// Next step once all calls of the turn have ended.
    pub fn end_turn(&mut self) -> TurnOutcome {
        let end = self.end.take();
        let served = self.context.served.get_or_insert_default();
        served.n_output_tokens = self.tally.output;
        let is_spent = self.request.max_output_tokens().is_some_and(|most| self.tally.output >= most);
        if self.is_last || is_spent || served.turn + 1 >= self.max_turns {
            let end = end.map(|end| match (is_spent, self.is_last) {
                (true, false) => ChoiceEnd { reason: FinishReason::Length, ..end },
                _ => end,
            });
            return match end {
                Some(end) => {
                    TurnOutcome::End(AnswerEvent::Finished { choice_idx: 0, deltas: Vec::new(), end })
                }
                None => TurnOutcome::Next,
            };
        }
        served.turn += 1;
        served.is_exhausted = self.n_calls >= self.max_calls || served.turn + 1 >= self.max_turns;
        TurnOutcome::Next
    }

    /// Begins the next turn of the model, and returns the event for it.
    pub fn begin_turn(&mut self, n_prompt_tokens: u64, n_image_tokens: u64) -> AnswerEvent {
        let Tally { prompt, images, cached, output, reasoning, .. } = self.tally;
        self.before = TokenCounts { prompt, images, cached, output, reasoning };
        let event = AnswerEvent::Served(ServedEvent::TurnBegan { n_prompt_tokens, n_image_tokens });
        self.tally.add(&event);
        event
    }

    fn with_turns_before(&self, counts: TokenCounts) -> TokenCounts {
        TokenCounts {
            prompt: self.before.prompt + counts.prompt,
            images: self.before.images + counts.images,
            cached: self.before.cached + counts.cached,
            output: self.before.output + counts.output,
            reasoning: self.before.reasoning + counts.reasoning,
        }
    }

    /// Takes the items of the turn that has ended, and its calls that run here.
    fn take_turn(&mut self) -> Vec<PendingCall> {
        let turn = std::mem::take(&mut self.turn);
        let runs = |name: &str| self.routes.get(name).filter(|route| !route.needs_approval);
        if !turn.calls.iter().any(|call| runs(&call.name).is_some()) {
            return Vec::new();
        }
        self.is_last = turn.calls.iter().any(|call| runs(&call.name).is_none());
        let mut pending = Vec::new();
        for (call_idx, call) in (0..).zip(&turn.calls) {
            let Some(route) = runs(&call.name) else { continue };
            self.n_calls += 1;
            pending.push(PendingCall {
                call_idx,
                server: route.server.clone(),
                tool: route.tool.clone(),
                arguments: call.arguments.clone(),
                refused_above: (self.n_calls > self.max_calls).then_some(self.max_calls),
            });
        }
        let served = self.context.served.get_or_insert_default();
        let mut items = items_of(turn, served.turn, |name| {
            let route = self.routes.get(name)?;
            Some((route.server.label.clone(), route.tool.clone()))
        });
        self.first_call = served.turns.len() + items.first_call;
        self.n_bytes += items.items.iter().map(size_of).sum::<usize>();
        served.turns.append(&mut items.items);
        pending
    }
}
