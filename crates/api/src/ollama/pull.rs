//! The body of `POST /api/pull`, and the lines of its answer.

use serde::Serialize;

use super::ErrorObject;
use crate::error::ApiError;
use crate::events::Events;
use crate::field::Kind::{Boolean, Ignored, ModelName};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;

/// A checked request to download a model into the cache.
#[derive(Debug, Clone, Default)]
pub struct PullRequest {
    model: Option<String>,
    old_name: Option<String>,
    /// Whether to answer line by line; default true.
    pub stream: Option<bool>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of `POST /api/pull`.
pub const PULL_FIELDS: &[Field<PullRequest>] = &[
    field("model", ModelName(|r| &mut r.model), "The model, as the hub names it: ORG/NAME, ORG/NAME:Q4_K_M."),
    field("name", ModelName(|r| &mut r.old_name), "The older name of model."),
    field("stream", Boolean(|r| &mut r.stream), "Answer line by line; true unless said."),
    field("insecure", Ignored(Shape::Boolean), "Has no effect: the hub's certificate is always checked."),
];

impl PullRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut request = Self::default();
        let mut part = Bound { fields: PULL_FIELDS, target: &mut request };
        let ignored = read_body(body, &mut [&mut part], options)?;
        request.ignored = ignored;
        if request.model.is_none() && request.old_name.is_none() {
            return Err(ApiError::missing_required_parameter("model"));
        }
        Ok(request)
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        self.model.as_deref().or(self.old_name.as_deref()).unwrap_or_default()
    }
}

/// A line of the answer.
#[derive(Debug, Serialize)]
pub struct PullLine<'a> {
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl<'a> PullLine<'a> {
    /// The line before the list of the model's files is fetched.
    pub fn manifest() -> Self {
        Self::of("pulling manifest".to_owned())
    }

    /// Progress of a file in bytes. Clients distinguish files by the digest, which is the file's name here.
    pub fn file(name: &'a str, completed: u64, total: u64) -> Self {
        Self {
            digest: Some(name),
            total: Some(total),
            completed: Some(completed),
            ..Self::of(format!("pulling {name}"))
        }
    }

    /// The last line: the model is in the cache.
    pub fn success() -> Self {
        Self::of("success".to_owned())
    }

    fn of(status: String) -> Self {
        Self { status, digest: None, total: None, completed: None }
    }

    /// Writes the line.
    pub fn write(&self, out: &mut Events) {
        out.push_line(self);
    }

    /// Writes an error as the last line.
    pub fn write_error(error: &ApiError, out: &mut Events) {
        out.push_line(&ErrorObject::new(error));
    }
}
