//! Faults of ids under which something is kept. Does not know stores.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// The response that a request goes on from is not kept for this tenant.
    pub fn previous_response_not_found(id: &str) -> Self {
        let message = format!("Previous response with id '{}' not found.", echo(id));
        Self::bad_request("previous_response_not_found", message).with_param("previous_response_id")
    }

    /// No response of this id is kept for this tenant.
    pub fn response_not_found(id: &str) -> Self {
        let message = format!("Response with id '{}' not found.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "response_not_found", message).with_param("response_id")
    }

    /// No conversation of this id is kept for this tenant.
    pub fn conversation_not_found(id: &str) -> Self {
        let message = format!("Conversation with id '{}' not found.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "conversation_not_found", message).with_param("conversation")
    }

    /// No item of this id is kept where it was looked for.
    pub fn item_not_found(id: &str, param: &str) -> Self {
        let message = format!(
            "Item with id '{}' not found. Items are kept only where 'store' is true; else send the item itself.",
            echo(id)
        );
        Self::client(StatusCode::NOT_FOUND, "item_not_found", message).with_param(param)
    }

    /// The request needs a store, and the server has none.
    pub fn needs_store(param: &str) -> Self {
        let reason = "This server keeps nothing: it was started without a store.";
        Self::unsupported_parameter(param, reason)
    }
}
