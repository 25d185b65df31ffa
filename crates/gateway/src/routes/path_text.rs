//! The variable part of a route's path as text. Does not know its meaning.

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

use crate::rejection::Rejection;
use throng_api::ApiError;

/// The variable part of a route's path, percent-decoded.
#[derive(Debug)]
pub(super) struct PathText(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let decoded = Path::<String>::from_request_parts(parts, state).await;
        decoded
            .map(|Path(text)| Self(text))
            .map_err(|_| ApiError::invalid_url("its path is not UTF-8").into())
    }
}
