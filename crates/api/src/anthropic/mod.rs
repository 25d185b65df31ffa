//! Anthropic's Messages API. Names, types and events are those of its Python library, version 2.14.

pub mod batches;
mod content;
mod request;
mod response;
mod tools;
mod writer;

use std::borrow::Cow;

use serde::Serialize;

use crate::dialect::{Dialect, Request};
use crate::error::ApiError;
use crate::field::ReadOptions;

pub use request::{CountTokensRequest, FIELDS};
pub use response::ModelPage;

/// `POST /v1/messages`.
#[derive(Debug, Clone, Copy)]
pub struct Messages;

impl Dialect for Messages {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let spec = request::parse(body, options)?;
        let max_tokens = spec.options.max_tokens.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        let has_timings = spec.options.reports_timings();
        Ok(Request { spec, view: Box::new(writer::MessageView { max_tokens, has_timings }) })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        serde_json::to_vec(&ErrorObject::new(error)).expect("strings always serialise")
    }
}

/// An error, as a body or as the last event of a stream.
#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    r#type: &'static str,
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
    /// The code of OpenAI's form, an addition to Anthropic's.
    code: &'static str,
}

impl<'a> ErrorObject<'a> {
    fn new(error: &'a ApiError) -> Self {
        let kind = match error.status().as_u16() {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        // By these words agents recognize that they must shorten the conversation.
        let message = match error.code() {
            "context_length_exceeded" => format!("prompt is too long: {}", error.message()).into(),
            _ => error.message().into(),
        };
        Self { r#type: "error", error: ErrorFields { r#type: kind, message, code: error.code() } }
    }
}
