//! OpenAI's Responses. Names, types and events are those of its Python library, version 3.57.

mod compact;
mod conversation;
mod fields;
mod history;
mod input;
mod item;
mod logprobs;
mod mcp_input;
mod mcp_item;
mod mcp_tool;
mod members;
mod open_item;
mod request;
mod response;
mod served;
mod slot;
mod socket;
mod state_parameters;
mod tools;
mod view;
mod writer;

use self::view::ResponseView;
use self::writer::ResponseWriter;
use crate::answer::{AnswerShape, LogprobBytes};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter, Dialect, Request};
use crate::error::ApiError;
use crate::field::ReadOptions;
use crate::spec::GenerationSpec;

pub use compact::Compact;
pub use conversation::{CONVERSATION_BODY_FIELDS, ConversationBody, ITEMS_BODY_FIELDS, ItemsBody};
pub use fields::{Body, FIELDS};
pub use history::History;
pub use input::Entry;
pub use item::{
    Author, CallOutput, Compaction, Content, CustomToolCall, FunctionCall, Ids, Item, ItemStatus, Logprob,
    Message, Origin, Output, Reasoning, Side, Thought, TopLogprob,
};
pub use mcp_item::{
    McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools, McpStatus, ToolDefinition,
};
pub use mcp_tool::{Approval, MAX_LABEL_BYTES, McpServer, ServerTool, ToolFilter, is_label};
pub use request::{CountedInput, CreateRequest};
pub use slot::{ResponseSlot, WholeResponse};
pub use socket::{ClientMessage, Framing, Lane, Lanes, error_message};
pub use throng_text::{TokenTrail, TrailPart};

pub use state_parameters::{ServedTools, StateParameters, TurnContext};

/// Bytes of a token among the log-probabilities of a text, which a stream tells twice.
const LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 96, alternative: 72 };

/// `POST /v1/responses`, of a server that keeps nothing.
#[derive(Debug, Clone, Copy)]
pub struct Responses;

impl Dialect for Responses {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let request = CreateRequest::parse(body, options)?;
        StateParameters::of(body).unwrap_or_default().check_without_store()?;
        Ok(request.into_request(&TurnContext::default())?.0)
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error.to_json()
    }
}

impl AnswerView for ResponseView {
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape {
        AnswerShape { logprobs: spec.options.logprobs.map(|_| LOGPROB_BYTES), ..AnswerShape::default() }
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        Box::new(ResponseWriter::new(*self, facts))
    }
}
