//! Errors of ids of stored responses, conversations and items. Does not know stores.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// The tenant has no stored response with this id to continue from.
    pub fn previous_response_not_found(id: &str) -> Self {
        let message = format!("Previous response with id '{}' not found.", echo(id));
        Self::bad_request("previous_response_not_found", message).with_param("previous_response_id")
    }

    /// The tenant has no stored response with this id.
    pub fn response_not_found(id: &str) -> Self {
        let message = format!("Response with id '{}' not found.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "response_not_found", message).with_param("response_id")
    }

    /// The tenant has no stored conversation with this id.
    pub fn conversation_not_found(id: &str) -> Self {
        let message = format!("Conversation with id '{}' not found.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "conversation_not_found", message).with_param("conversation")
    }

    /// The response or conversation has no stored item with this id.
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
