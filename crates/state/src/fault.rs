//! Translates errors of a store into errors for clients.

use throng_api::ApiError;
use throng_store::StoreError;

use crate::error::StateError;

/// Seconds after which a client may retry.
const RETRY_AFTER_S: u32 = 2;

/// Error for the client from a store's error.
pub(crate) fn api_error(error: StoreError) -> ApiError {
    if !matches!(error, StoreError::Full) {
        tracing::warn!(%error, "the store of objects failed");
    }
    StateError::from(error).to_api(RETRY_AFTER_S)
}

/// An object that is not kept for a tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Missing<'a> {
    Response(&'a str),
    Conversation(&'a str),
    Item(&'a str),
}

impl Missing<'_> {
    pub fn error(self) -> ApiError {
        match self {
            Self::Response(id) => ApiError::response_not_found(id),
            Self::Conversation(id) => ApiError::conversation_not_found(id),
            Self::Item(id) => ApiError::item_not_found(id, "after"),
        }
    }
}
