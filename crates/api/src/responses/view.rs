//! Form of a response: the fields of the request to repeat, and the parts of items to show.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use serde_json::value::RawValue;
use throng_core::request::TokenId;
use throng_text::TrailPart;

use super::item::{Ids, Item};
use super::mcp_tool::ServerTool;
use super::slot::ResponseSlot;
use super::socket::Framing;
use crate::dialect::AnswerFacts;

/// Parameters that an answer repeats of its request.
#[derive(Debug)]
pub(super) struct Echo {
    pub background: bool,
    pub conversation: Option<String>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub max_tool_calls: Option<i64>,
    pub metadata: Option<Box<RawValue>>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub prompt_cache_key: Option<String>,
    pub effort: Option<&'static str>,
    pub summary: Option<&'static str>,
    pub safety_identifier: Option<String>,
    pub service_tier: Option<&'static str>,
    pub store: bool,
    pub format: Option<Box<RawValue>>,
    pub verbosity: Option<&'static str>,
    pub tool_choice: Option<Box<RawValue>>,
    pub tools: Vec<Value>,
    pub top_logprobs: i64,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub truncation: &'static str,
    pub user: Option<String>,
}

/// The view of a response.
#[derive(Debug)]
pub(super) struct ResponseView {
    pub ids: Ids,
    pub echo: Echo,
    /// The names of tools that take free text.
    pub custom_tools: BTreeSet<String>,
    /// The namespaces of tools that have one.
    pub namespaces: BTreeMap<String, String>,
    /// Whether the thoughts are shown as a summary.
    pub shows_summary: bool,
    /// Whether the reasoning is shown again in encoded form, for clients that keep no other form of it.
    pub shows_encrypted: bool,
    pub shows_logprobs: bool,
    /// Slot in which the writer leaves the whole response.
    pub slot: ResponseSlot,
    /// Ids of calls that an earlier attempt has sent.
    pub call_ids: Vec<String>,
    pub framing: Framing,
    /// Whether no generated output is shown.
    pub is_warmup: bool,
    /// Items that the response begins with, before the model's first turn.
    pub first: Vec<Item>,
    /// The tools that the server calls, by their names for the model.
    pub served_tools: BTreeMap<String, ServerTool>,
}

impl ResponseView {
    /// The part of its conversation's tokens that a turn with this answer adds, if tokens are kept.
    pub fn trail_of(&self, facts: &AnswerFacts, answer: &[TokenId]) -> Option<TrailPart> {
        let (trail, tokenizer) = facts.trail.as_ref().zip(facts.tokenizer.as_ref())?;
        let prompt = facts.prompts.first()?;
        // The answer of a turn that only prepares its input is part of no conversation.
        (!answer.is_empty() && !self.is_warmup).then(|| trail.part(tokenizer, prompt, answer))
    }
}
