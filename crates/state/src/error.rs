//! Errors of kept objects, and their form in an API.

use throng_api::ApiError;
use throng_store::StoreError;

/// Reason why a kept object cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The object does not exist, or belongs to another tenant.
    #[error("No {what} found with id '{id}'")]
    NotFound {
        /// Kind of the object for error messages, like `file`.
        what: &'static str,
        /// The requested id.
        id: String,
    },
    /// The request is invalid.
    #[error(transparent)]
    Refused(ApiError),
    /// The body of an object is not in the format of this version.
    #[error("what is kept under {0} cannot be read")]
    Unreadable(String),
    /// The database refuses or fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ApiError> for StateError {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl StateError {
    /// Error for the client, without the database's message.
    pub fn to_api(self, retry_after_s: u32) -> ApiError {
        match self {
            Self::NotFound { what, id } => ApiError::object_not_found(what, &id),
            Self::Refused(error) => error,
            Self::Unreadable(_) => ApiError::internal_error("unknown"),
            Self::Store(StoreError::Full) => ApiError::storage_full(),
            Self::Store(StoreError::Conflict | StoreError::LeaseLost) => {
                ApiError::object_changed(retry_after_s)
            }
            Self::Store(StoreError::UnknownObject) => ApiError::not_found("There is no such object"),
            Self::Store(StoreError::Invalid { .. }) => {
                ApiError::refused_change("what is to be kept is too large or has an unusable id".to_owned())
            }
            Self::Store(_) => {
                ApiError::overloaded("The database that keeps it does not answer.", retry_after_s)
            }
        }
    }
}
