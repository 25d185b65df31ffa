//! `POST /v1/responses/compact`: shortens a conversation. The model writes a summary that replaces all but
//! the user's messages.

use std::io;

use serde::Serialize;

use super::item::{Author, Compaction, Ids, Item, Side, encode_opaque};
use super::request::{CreateRequest, Parts};
use super::response::Usage;
use super::state_parameters::{StateParameters, TurnContext};
use super::tools::{ToolChoice, Tools};
use crate::answer::{Answer, AnswerEvent, AnswerShape};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter, Dialect, Request};
use crate::error::ApiError;
use crate::events::Events;
use crate::field::ReadOptions;
use crate::spec::{ContentPart, GenerationSpec, Input, Message, Role};

/// Request to the model behind the conversation.
const ASK: &str = "Summarise the conversation above for yourself, so that you can go on with it from \
    the summary alone: what was asked, what was done and found out, decisions, names, numbers, file paths and open \
    questions. Write only the summary.";

/// `POST /v1/responses/compact`.
#[derive(Debug, Clone, Copy)]
pub struct Compact;

impl Dialect for Compact {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        StateParameters::of(body).unwrap_or_default().check_without_store()?;
        CreateRequest::parse(body, options)?.into_compaction(&TurnContext::default())
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error.to_json()
    }
}

impl CreateRequest {
    /// The request for a summary of the conversation.
    ///
    /// # Errors
    /// A 400 for items that do not belong together, and for references to items that are not kept.
    pub fn into_compaction(mut self, context: &TurnContext) -> Result<Request, ApiError> {
        self.body.options.stream = None;
        self.body.options.constraint = None;
        self.body.tools = Tools::default();
        self.body.tool_choice = ToolChoice::default();
        self.body.truncates = true;
        let Parts { options, mut chat, items, .. } = self.into_parts(context)?;
        chat.conversation.messages.push(Message::new(Role::User, vec![ContentPart::from(ASK)]));
        chat.shows_reasoning = false;
        let view = CompactView::of(context.history.iter().cloned().chain(items).collect());
        Ok(Request {
            spec: GenerationSpec { options, input: Input::Chat(Box::new(chat)) },
            view: Box::new(view),
        })
    }
}

/// The view of a compacted conversation.
#[derive(Debug)]
struct CompactView {
    /// Items kept unchanged by the compaction.
    pub items: Vec<Item>,
}

impl CompactView {
    /// Keeps the user's messages of a conversation with these items.
    pub fn of(items: Vec<Item>) -> Self {
        let stays = |item: &Item| matches!(item, Item::Message(message) if message.role == Author::User);
        Self { items: items.into_iter().filter(stays).collect() }
    }
}

impl AnswerView for CompactView {
    fn shape(&self, _: &GenerationSpec) -> AnswerShape {
        AnswerShape::default()
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        Box::new(CompactWriter { items: self.items, created_unix_s: facts.created_unix_s })
    }
}

#[derive(Debug)]
struct CompactWriter {
    items: Vec<Item>,
    created_unix_s: u64,
}

#[derive(Debug, Serialize)]
struct CompactedResponse<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    output: &'a [Item],
    usage: Usage,
}

impl AnswerWriter for CompactWriter {
    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    // It is never asked for as a stream.
    fn event(&mut self, _: AnswerEvent, _: &mut Events) {}

    fn end(&mut self, _: &mut Events) {}

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        out.push_data(&error.to_json());
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let ids = Ids::new();
        let mut output = self.items.clone();
        let id = ids.item("cmp", Side::Output, output.len());
        let summary = answer.choices[0].content.trim();
        output.push(Item::Compaction(Compaction { id, encrypted_content: encode_opaque(summary) }));
        let usage = Usage::from(&answer.tally);
        let created_at = self.created_unix_s;
        let object = "response.compaction";
        let compacted = CompactedResponse { id: ids.response(), object, created_at, output: &output, usage };
        Ok(serde_json::to_writer(out, &compacted)?)
    }
}
