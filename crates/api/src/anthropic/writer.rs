//! Writes answers as messages, whole or as a stream of events.

use std::borrow::Cow;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use uuid::Uuid;

use super::ErrorObject;
use super::response::{Block, BlockDelta, Event, Message, MessageEnd, Usage, input_of};
use crate::answer::{Answer, AnswerEvent, AnswerShape, ChoiceEnd, Delta, Tally};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::spec::GenerationSpec;

/// The client's options for a message.
#[derive(Debug)]
pub(super) struct MessageView {
    /// Output token limit in the request; the context may have had less room.
    pub max_tokens: u64,
    /// Whether the usage includes timings.
    pub has_timings: bool,
}

impl AnswerView for MessageView {
    fn shape(&self, _: &GenerationSpec) -> AnswerShape {
        AnswerShape::default()
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        let tally = facts.tally();
        let id = format!("msg_{}", Uuid::new_v4().simple());
        let (view, model) = (*self, facts.model);
        Box::new(MessageWriter { id, model, view, tally, open: None, n_blocks: 0, has_begun: false })
    }
}

/// Writes one message.
#[derive(Debug)]
struct MessageWriter {
    id: String,
    model: String,
    view: MessageView,
    tally: Tally,
    /// The block currently being written.
    open: Option<OpenBlock>,
    n_blocks: u32,
    has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    Call(u32),
}

impl MessageWriter {
    fn begin(&mut self, out: &mut Events) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = self.message(Vec::new(), MessageEnd::default(), Usage::from(&self.tally));
        push(&Event::MessageStart { message }, out);
    }

    fn message<'a>(&'a self, content: Vec<Block<'a>>, end: MessageEnd<'a>, usage: Usage) -> Message<'a> {
        let MessageEnd { stop_reason, stop_sequence } = end;
        Message {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: &self.model,
            content,
            stop_reason,
            stop_sequence,
            usage,
        }
    }

    /// The end of an answer with the counts of `tally`; without a stop reason if the end is unknown.
    fn end_of<'a>(&self, end: Option<&'a ChoiceEnd>, tally: &Tally) -> MessageEnd<'a> {
        let at_limit =
            if tally.output < self.view.max_tokens { "model_context_window_exceeded" } else { "max_tokens" };
        end.map_or_else(MessageEnd::default, |end| MessageEnd::of(end, at_limit))
    }

    /// Starts a block unless it is already open, after closing any other open block.
    fn open(&mut self, block: OpenBlock, content_block: Block<'_>, out: &mut Events) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        push(&Event::ContentBlockStart { index: self.n_blocks, content_block }, out);
        (self.open, self.n_blocks) = (Some(block), self.n_blocks + 1);
    }

    fn close(&mut self, out: &mut Events) {
        let Some(block) = self.open.take() else { return };
        let index = self.n_blocks - 1;
        if block == OpenBlock::Thinking {
            let signature = &signature();
            push(&Event::ContentBlockDelta { index, delta: BlockDelta::Signature { signature } }, out);
        }
        push(&Event::ContentBlockStop { index }, out);
    }

    fn push_delta(&mut self, delta: &Delta, out: &mut Events) {
        let delta = match delta {
            Delta::Content(text) if text.is_empty() => return,
            Delta::Content(text) => {
                self.open(OpenBlock::Text, Block::Text { text: "" }, out);
                BlockDelta::Text { text }
            }
            Delta::Reasoning(thinking) => {
                let block = Block::Thinking { thinking: "", signature: Cow::Borrowed("") };
                self.open(OpenBlock::Thinking, block, out);
                BlockDelta::Thinking { thinking }
            }
            Delta::CallBegin { call_idx, id, name } => {
                let block = Block::ToolUse { id, name, input: input_of("") };
                return self.open(OpenBlock::Call(*call_idx), block, out);
            }
            // The fragments of a call follow each other without other blocks in between.
            Delta::CallArguments { fragment, .. } => BlockDelta::InputJson { partial_json: fragment },
        };
        push(&Event::ContentBlockDelta { index: self.n_blocks.saturating_sub(1), delta }, out);
    }
}

/// A signature of a thinking block. Clients send it back, and the server ignores it.
fn signature() -> String {
    STANDARD.encode(Uuid::new_v4().as_bytes())
}

fn push(event: &Event<'_>, out: &mut Events) {
    out.push_named(event.name(), event);
}

impl AnswerWriter for MessageWriter {
    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.tally.add(&event);
        // The first event reports the cached tokens of the prompt.
        self.begin(out);
        match &event {
            AnswerEvent::Token { deltas, .. } => deltas.iter().for_each(|delta| self.push_delta(delta, out)),
            AnswerEvent::Finished { deltas, end, .. } => {
                deltas.iter().for_each(|delta| self.push_delta(delta, out));
                self.close(out);
                let usage = Usage::of_whole(&self.tally, self.view.has_timings);
                push(&Event::MessageDelta { delta: self.end_of(Some(end), &self.tally), usage }, out);
            }
            AnswerEvent::Prompt { .. }
            | AnswerEvent::Served(_)
            | AnswerEvent::Usage(_)
            | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        push(&Event::MessageStop, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        out.push_named("error", &ErrorObject::new(error));
    }

    fn ping(&mut self, comment: &str, out: &mut Events) {
        if self.has_begun { push(&Event::Ping, out) } else { out.push_comment(comment) }
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let choice = &answer.choices[0];
        let mut content = Vec::new();
        if !choice.reasoning.is_empty() {
            content.push(Block::Thinking { thinking: &choice.reasoning, signature: signature().into() });
        }
        if !choice.content.is_empty() {
            content.push(Block::Text { text: &choice.content });
        }
        content.extend(choice.calls.iter().map(|call| Block::ToolUse {
            id: &call.id,
            name: &call.name,
            input: input_of(&call.arguments),
        }));
        let end = self.end_of(choice.end.as_ref(), &answer.tally);
        let usage = Usage::of_whole(&answer.tally, self.view.has_timings);
        Ok(serde_json::to_writer(out, &self.message(content, end, usage))?)
    }
}
