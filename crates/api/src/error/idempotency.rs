//! Errors of repeated requests with the same `Idempotency-Key`. Does not know how answers are kept.

use http::StatusCode;

use super::ApiError;

impl ApiError {
    /// An earlier, different request had the same `Idempotency-Key`; retrying does not help.
    pub fn idempotency_mismatch() -> Self {
        let message = "This Idempotency-Key was used for another request.";
        Self::client(StatusCode::BAD_REQUEST, "idempotency_mismatch", message).with_param("Idempotency-Key")
    }

    /// The earlier request with this `Idempotency-Key` is still running.
    pub fn in_progress(retry_after_s: u32) -> Self {
        let message = "The request with this Idempotency-Key is still being answered.";
        let error = Self::client(StatusCode::CONFLICT, "in_progress", message);
        error.with_param("Idempotency-Key").retry_after(retry_after_s)
    }
}
