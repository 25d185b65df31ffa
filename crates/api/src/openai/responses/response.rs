//! Common parts of chat and text completions: ids, the envelope, ends of choices. Does not know where the
//! text comes from.

use serde::{Serialize, Serializer};
use throng_core::request::{FinishReason, TokenId};
use uuid::Uuid;

/// Version of the server: the same version on the same kind of machine gives the same answers for a seed.
pub const SYSTEM_FINGERPRINT: &str = concat!("throng-", env!("CARGO_PKG_VERSION"));

/// Creates the id of a chat completion, from the client's own id or at random.
pub fn chat_id(request_id: Option<&str>) -> String {
    id("chatcmpl-", request_id)
}

/// Creates the id of a text completion, from the client's own id or at random.
pub fn completion_id(request_id: Option<&str>) -> String {
    id("cmpl-", request_id)
}

/// Creates a random id of a tool call. Some models can only repeat short ones: nine letters and digits.
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

/// Common members of an answer and all its chunks.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Id of [`chat_id`] or [`completion_id`].
    pub id: &'a str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Name of the model in the request.
    pub model: &'a str,
}

/// End of a choice in OpenAI's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish<'a> {
    /// Value of `finish_reason`.
    pub reason: &'static str,
    /// Value of `stop_reason`.
    pub stop: Option<StopReason<'a>>,
}

/// Cause of an end with `stop`, unless it was the model's own end token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason<'a> {
    /// A string of the request's `stop`.
    Text(&'a str),
    /// A token of the request's `stop_token_ids`.
    Token(TokenId),
}

impl<'a> Finish<'a> {
    /// Converts the end of a choice. `stop` is the stop string that was found, if any.
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
    /// The end of a choice that moderation ended before a text that must not be sent.
    pub fn filtered() -> Self {
        Self { reason: "content_filter", stop: None }
    }

    /// Changes `stop` to `tool_calls`, for an answer with tool calls.
    pub fn with_calls(self) -> Self {
        if self.reason == "stop" { Self { reason: "tool_calls", ..self } } else { self }
    }
}

/// Serializes an `Option` as a list of one element or none.
pub(super) fn as_list<T: Serialize, S: Serializer>(
    item: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(item)
}
