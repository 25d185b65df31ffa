//! How the client of a response wants to see it: what the answer repeats of the request, and which parts of
//! items are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use serde_json::value::RawValue;

use super::item::{Ids, Item};
use super::writer::ResponseWriter;
use crate::answer::{AnswerShape, LogprobBytes};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::spec::GenerationSpec;

/// Bytes of a token among the log-probabilities of a text, which a stream tells twice.
const LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 96, alternative: 72 };

/// What an answer repeats of its request.
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
    /// Whether the thoughts are shown once more, for clients that keep no other form of them.
    pub shows_encrypted: bool,
    pub shows_logprobs: bool,
    /// Where the whole response is left.
    pub slot: ResponseSlot,
    /// Ids of calls that an earlier attempt has told.
    pub call_ids: Vec<String>,
}

impl AnswerView for ResponseView {
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape {
        AnswerShape { logprobs: spec.options.logprobs.map(|_| LOGPROB_BYTES), ..AnswerShape::default() }
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        Box::new(ResponseWriter::new(*self, facts))
    }
}

/// A response, as it was told last.
#[derive(Debug, Clone)]
pub struct WholeResponse {
    /// The response object as JSON.
    pub json: Vec<u8>,
    /// Whether it has ended.
    pub has_ended: bool,
    /// Its items.
    pub output: Vec<Item>,
}

/// Where a writer leaves a response for those who keep it: as it begins, and once it has ended.
#[derive(Debug, Clone, Default)]
pub struct ResponseSlot(Arc<Mutex<Option<WholeResponse>>>);

impl ResponseSlot {
    /// Takes out what was left last.
    pub fn take(&self) -> Option<WholeResponse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes out the response if it has ended.
    pub fn take_finished(&self) -> Option<WholeResponse> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.take_if(|response| response.has_ended)
    }

    pub(super) fn put(&self, response: WholeResponse) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    }
}
