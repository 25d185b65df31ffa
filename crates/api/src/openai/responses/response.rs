//! What the answers to chats and to text completions have in common: ids, the envelope, how a choice ended.
//! Does not know where the words come from.

use serde::{Serialize, Serializer};
use throng_core::request::{FinishReason, TokenId};
use uuid::Uuid;

/// The build that answers: the same build on the same kind of machine gives the same answers to a seed.
pub const SYSTEM_FINGERPRINT: &str = concat!("throng-", env!("CARGO_PKG_VERSION"));

/// The id of a chat completion: from the client's own id, or random.
pub fn chat_id(request_id: Option<&str>) -> String {
    id("chatcmpl-", request_id)
}

/// The id of a text completion: from the client's own id, or random.
pub fn completion_id(request_id: Option<&str>) -> String {
    id("cmpl-", request_id)
}

/// A random id of a call of a tool. Some models only read back short ones: nine letters and digits.
pub fn call_id(is_short: bool) -> String {
    let id = Uuid::new_v4().simple().to_string();
    if is_short { id[..9].to_owned() } else { format!("call_{}", &id[..24]) }
}

fn id(prefix: &str, request_id: Option<&str>) -> String {
    match request_id {
        Some(own) => format!("{prefix}{own}"),
        None => format!("{prefix}{}", Uuid::new_v4().simple()),
    }
}

/// What an answer and all its chunks have in common.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// See [`chat_id`] and [`completion_id`].
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The name under which the client asked for the model.
    pub model: &'a str,
}

/// How a choice ended, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish<'a> {
    /// `finish_reason`.
    pub reason: &'static str,
    /// `stop_reason`.
    pub stop: Option<StopReason<'a>>,
}

/// What ended a choice that ended with `stop`, unless it was the model's own end token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason<'a> {
    /// One of the request's `stop`.
    Text(&'a str),
    /// One of the request's `stop_token_ids`.
    Token(TokenId),
}

impl<'a> Finish<'a> {
    /// How a choice ended: `stop` is the stop string that was found, if one was.
    pub fn new(reason: FinishReason, stop: Option<&'a str>) -> Self {
        if let Some(text) = stop {
            return Self { reason: "stop", stop: Some(StopReason::Text(text)) };
        }
        match reason {
            FinishReason::Stop { token } => Self { reason: "stop", stop: token.map(StopReason::Token) },
            FinishReason::Length => Self { reason: "length", stop: None },
            FinishReason::Abort => Self { reason: "abort", stop: None },
            FinishReason::Error => Self { reason: "error", stop: None },
        }
    }
}

impl Finish<'_> {
    /// How a choice ended that ends before a text that must not be sent.
    pub fn filtered() -> Self {
        Self { reason: "content_filter", stop: None }
    }

    /// The same, for an answer with calls of tools: one that stopped by itself did so to call them.
    pub fn with_calls(self) -> Self {
        if self.reason == "stop" { Self { reason: "tool_calls", ..self } } else { self }
    }
}

/// Writes the one element or none as a list.
pub(super) fn as_list<T: Serialize, S: Serializer>(
    item: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(item)
}
