//! Errors of the API as responses of handlers, and refusals of the HTTP server below as errors of the API.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use http_body::Body as _;
use throng_api::{ApiError, Dialect};
pub(crate) use throng_fetch::memory_full;
use throng_http::body::BodyError;
use throng_http::{ReadError, Refusal, Violation};

use throng_http::retry_after::retry_after_s;

/// Error of a handler, which axum turns into a response.
#[derive(Debug)]
pub(crate) struct Rejection(ApiError);

impl From<ApiError> for Rejection {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<Rejection> for ApiError {
    fn from(Rejection(error): Rejection) -> Self {
        error
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.0.response(Body::empty())
    }
}

/// Writes the error of a response, if it is one, in the form of `dialect`. Handlers' responses carry their
/// error without a body until then.
pub(crate) fn write_error(response: &mut Response, dialect: &dyn Dialect) {
    if let Some(error) = response.extensions().get::<ApiError>().filter(|_| response.body().is_end_stream()) {
        *response.body_mut() = Body::from(dialect.error_body(error));
        // The router has announced the empty one.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
}

/// Response to a request that is refused before it reaches a handler.
pub(crate) fn reject(error: ApiError) -> Response {
    Rejection(error).into_response()
}

/// Error for a request whose head the HTTP server refused.
pub(crate) fn head_refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Violation(violation) => head_violation(violation),
        Refusal::HeadTimeout => ApiError::request_timeout(),
        Refusal::ShuttingDown => ApiError::shutting_down(retry_after_s()),
    }
}

/// Error for a head that breaks a rule of HTTP or a bound of the server.
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

/// Error for a body that was not read.
pub(crate) fn body_not_read(error: ReadError) -> ApiError {
    match error {
        ReadError::Refused(refusal) => head_refused(refusal),
        ReadError::Body(BodyError::TooLarge { max_bytes }) => ApiError::request_too_large(max_bytes),
        ReadError::Body(BodyError::Memory(full)) => memory_full(full),
        ReadError::Body(BodyError::Incomplete) => ApiError::incomplete_body(),
        ReadError::TimedOut => ApiError::request_timeout(),
        ReadError::ShuttingDown => ApiError::shutting_down(retry_after_s()),
    }
}
