//! Errors of the API as responses of handlers, and refusals of the HTTP server below as errors of the API.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use throng_api::ApiError;
use throng_http::body::BodyError;
use throng_http::memory::MemoryFull;
use throng_http::{Refusal, Violation};

use crate::retry_after::retry_after_s;

/// The error of a handler, which axum turns into a response.
#[derive(Debug)]
pub(crate) struct Rejection(ApiError);

impl From<ApiError> for Rejection {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let body = Body::from(self.0.to_json());
        self.0.response(body)
    }
}

/// The response to a request that is refused before it reaches a handler.
pub(crate) fn reject(error: ApiError) -> Response {
    Rejection(error).into_response()
}

/// The error of a request for which there is no memory.
pub(crate) fn memory_full(full: MemoryFull) -> ApiError {
    match full {
        MemoryFull::Now => {
            ApiError::overloaded("The server's memory for requests is in use.", retry_after_s())
        }
        MemoryFull::Never { limit } => ApiError::request_needs_too_much_memory(limit),
    }
}

/// The error of a request that the HTTP server refused by its head.
pub(crate) fn head_refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Violation(violation) => head_violation(violation),
        Refusal::HeadTimeout => ApiError::request_timeout(),
        Refusal::ShuttingDown => ApiError::shutting_down(retry_after_s()),
    }
}

/// The error of a request whose head breaks a rule of HTTP or one of the server's bounds.
pub(crate) fn head_violation(violation: Violation) -> ApiError {
    match violation {
        Violation::Malformed(reason) => ApiError::malformed_request(reason),
        Violation::Version => ApiError::unsupported_http_version(),
        Violation::Target => ApiError::invalid_url("it is not a URI"),
        Violation::TargetTooLong => ApiError::uri_too_long(),
        Violation::FieldsTooLarge => ApiError::headers_too_large(),
        // A key too long to be one is first of all a wrong key.
        Violation::CredentialsTooLarge => ApiError::invalid_api_key(),
    }
}

/// The error of a body that could not be read.
pub(crate) fn body_error(error: BodyError) -> ApiError {
    match error {
        BodyError::TooLarge { max_bytes } => ApiError::request_too_large(max_bytes),
        BodyError::Memory(full) => memory_full(full),
        BodyError::Incomplete => ApiError::incomplete_body(),
    }
}
