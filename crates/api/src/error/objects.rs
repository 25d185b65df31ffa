//! Errors of stored files, batches and similar objects. Does not know how they are stored.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// The object does not exist, or belongs to another tenant. `what` is its kind, like `file`.
    pub fn object_not_found(what: &str, id: &str) -> Self {
        Self::client(StatusCode::NOT_FOUND, "not_found", format!("No {what} found with id '{}'.", echo(id)))
    }

    /// The tenant's storage is full. The status is not 429, since waiting does not help.
    pub fn storage_full() -> Self {
        let message = "This key keeps as many objects or bytes as it may keep. Delete some of them first.";
        Self::client(StatusCode::FORBIDDEN, "storage_full", message)
    }

    /// Another request changed the object at the same time.
    pub fn object_changed(retry_after_s: u32) -> Self {
        let message = "The object was changed by another request at the same time.";
        Self::client(StatusCode::CONFLICT, "conflict", message).retry_after(retry_after_s)
    }

    /// The body is not a readable multipart form.
    pub fn unsupported_form() -> Self {
        let message = "The body must be a form: 'Content-Type: multipart/form-data' with a boundary.";
        Self::client(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The server stores no objects: it has no database.
    pub fn nothing_kept() -> Self {
        let message = "This server keeps nothing between requests: it runs without a database.";
        Self::client(StatusCode::NOT_FOUND, "unsupported_by_server", message)
    }
}
