//! Refusals of the HTTP server below, as errors of the API. Does not know when they happen.

use throng_http::body::BodyError;
use throng_http::memory::MemoryFull;
use throng_http::{Refusal, Violation};

use crate::openai::ApiError;
use crate::retry_after::retry_after_s;

impl From<MemoryFull> for ApiError {
    fn from(full: MemoryFull) -> Self {
        match full {
            MemoryFull::Now => {
                Self::overloaded("The server's memory for requests is in use.", retry_after_s())
            }
            MemoryFull::Never { limit } => Self::request_needs_too_much_memory(limit),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Violation(violation) => violation.into(),
            Refusal::HeadTimeout => Self::request_timeout(),
            Refusal::ShuttingDown => Self::shutting_down(retry_after_s()),
        }
    }
}

impl From<Violation> for ApiError {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Malformed(reason) => Self::malformed_request(reason),
            Violation::Version => Self::unsupported_http_version(),
            Violation::Target => Self::invalid_url("it is not a URI"),
            Violation::TargetTooLong => Self::uri_too_long(),
            Violation::FieldsTooLarge => Self::headers_too_large(),
            // A key too long to be one is first of all a wrong key.
            Violation::CredentialsTooLarge => Self::invalid_api_key(),
        }
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { max_bytes } => Self::request_too_large(max_bytes),
            BodyError::Memory(full) => full.into(),
            BodyError::Incomplete => Self::incomplete_body(),
        }
    }
}
