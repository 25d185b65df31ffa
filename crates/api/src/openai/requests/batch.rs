//! The body of `POST /v1/batches`. Does not know files.

use crate::error::ApiError;
use crate::field::Kind::{Custom, Refused, Text};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;

/// Maximum bytes of a file's id.
const MAX_ID_BYTES: usize = 512;
/// Supported values of `completion_window`.
const WINDOWS: &[&str] = &["24h"];
/// Endpoints that lines of a batch may use.
const ENDPOINTS: &[&str] = &["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];

/// A checked request.
#[derive(Debug, Clone, Default)]
pub struct CreateBatchRequest {
    /// Endpoint of all lines.
    pub endpoint: &'static str,
    /// Id of the file with the lines.
    pub input_file_id: String,
    /// The client's metadata, an object of strings.
    pub metadata: Option<serde_json::Value>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters while they are being read.
#[derive(Debug, Default)]
pub struct BatchParameters {
    endpoint: Option<&'static str>,
    input_file_id: Option<String>,
    has_window: bool,
    metadata: Option<serde_json::Value>,
}

/// The parameters of `POST /v1/batches`.
pub const BATCH_FIELDS: &[Field<BatchParameters>] = &[
    field("input_file_id", Text(MAX_ID_BYTES, |r| &mut r.input_file_id), "The file with one request a line."),
    field(
        "endpoint",
        Custom(Shape::Choice(ENDPOINTS), |r, node, _| {
            r.endpoint = Some(ENDPOINTS[node.one_of(ENDPOINTS)?]);
            Ok(())
        }),
        "The endpoint of all requests.",
    ),
    field(
        "completion_window",
        Custom(Shape::Choice(WINDOWS), |r, node, _| {
            r.has_window = true;
            node.one_of(WINDOWS).map(drop)
        }),
        "The time in which all requests are answered, or the batch expires.",
    ),
    field(
        "metadata",
        Custom(Shape::StringMap, |r, node, _| {
            Shape::StringMap.check(node)?;
            r.metadata = serde_json::from_str(node.text()).ok();
            Ok(())
        }),
        "Up to 16 texts that the batch is shown with.",
    ),
    field(
        "output_expires_after",
        Refused(Shape::Object, |_| false),
        "Results are kept as long as the operator says.",
    ),
];

impl CreateBatchRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut read = BatchParameters::default();
        let mut bound = Bound { fields: BATCH_FIELDS, target: &mut read };
        let ignored = read_body(body, &mut [&mut bound], options)?;
        let missing = ApiError::missing_required_parameter;
        if !read.has_window {
            return Err(missing("completion_window"));
        }
        Ok(Self {
            endpoint: read.endpoint.ok_or_else(|| missing("endpoint"))?,
            input_file_id: read.input_file_id.ok_or_else(|| missing("input_file_id"))?,
            metadata: read.metadata,
            ignored,
        })
    }
}
