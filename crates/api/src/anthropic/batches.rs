//! Message batches: their requests and the objects that describe them. Does not answer requests.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::field::Kind::Custom;
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{JsonType, Node};

/// Maximum number of requests of a batch.
const MAX_REQUESTS: usize = 100_000;
/// Maximum bytes of a request's id, as in Anthropic's API.
const MAX_ID_BYTES: usize = 64;

/// A checked request to create a batch.
#[derive(Debug, Clone, Default)]
pub struct MessageBatchRequest {
    /// Ids and parameters of the requests, at least one.
    pub requests: Vec<(String, Box<RawValue>)>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of a batch of messages.
pub const BATCH_FIELDS: &[Field<MessageBatchRequest>] = &[field(
    "requests",
    Custom(Shape::Array(MAX_REQUESTS, &Shape::Object), read_requests),
    "The requests, each with a custom_id and the params of a message.",
)];

fn read_requests(r: &mut MessageBatchRequest, node: &Node<'_, '_>, _: &ReadOptions) -> Result<(), ApiError> {
    let mut ids = HashSet::new();
    node.elements(MAX_REQUESTS, |_, request| {
        let (mut id, mut params) = (None, None);
        request.members(16, |key, value| match key {
            "custom_id" => value.put(&mut id, value.string(MAX_ID_BYTES)?.into_owned()),
            "params" if value.json_type() == JsonType::Object => {
                let raw = RawValue::from_string(value.text().to_owned());
                value.put(&mut params, raw.map_err(|_| value.wrong_type("an object"))?)
            }
            "params" => Err(value.wrong_type("an object")),
            _ => value.ignore_unknown(),
        })?;
        let missing = |key| ApiError::missing_required_parameter(request.path_of(key));
        let id: String = id.filter(|id: &String| !id.is_empty()).ok_or_else(|| missing("custom_id"))?;
        if !ids.insert(id.clone()) {
            let reason = "Each request needs a custom_id of its own.";
            return Err(ApiError::invalid_value(request.path_of("custom_id"), reason));
        }
        r.requests.push((id, params.ok_or_else(|| missing("params"))?));
        Ok(())
    })
}

impl MessageBatchRequest {
    /// Reads and checks a body. The parameters of each request are checked only when it is answered.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut request = Self::default();
        let mut bound = Bound { fields: BATCH_FIELDS, target: &mut request };
        let ignored = read_body(body, &mut [&mut bound], options)?;
        if request.requests.is_empty() {
            return Err(ApiError::missing_required_parameter("requests"));
        }
        Ok(Self { ignored, ..request })
    }
}

/// Number of a batch's requests by state.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are those of Anthropic's API")]
pub struct BatchCounts {
    pub processing: u64,
    pub succeeded: u64,
    pub errored: u64,
    pub canceled: u64,
    pub expired: u64,
}

/// A batch of messages, as its endpoints return it.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are those of Anthropic's API")]
pub struct MessageBatch {
    pub id: String,
    pub r#type: &'static str,
    pub processing_status: &'static str,
    pub request_counts: BatchCounts,
    pub created_at: String,
    pub expires_at: String,
    pub ended_at: Option<String>,
    pub cancel_initiated_at: Option<String>,
    pub archived_at: Option<String>,
    pub results_url: Option<String>,
}

/// A page of batches.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are those of Anthropic's API")]
pub struct BatchPage {
    pub data: Vec<MessageBatch>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

/// A deleted batch.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedBatch {
    /// Id of the batch.
    pub id: String,
    /// `message_batch_deleted`.
    pub r#type: &'static str,
}

/// Formats a time as Anthropic's API does.
pub fn timestamp(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}
