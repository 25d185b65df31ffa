//! Endpoints for lines of batches, each answered by the handler of its route.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use throng_api::anthropic::Messages;
use throng_api::openai::ChatCompletions;
use throng_api::{ApiError, Dialect};

use super::json_body::JsonBody;
use super::{generate, pooling};
use crate::app::App;
use throng_auth::Tenant;

/// An endpoint that lines of batches may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchEndpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/responses`.
    Responses,
}

impl BatchEndpoint {
    /// Endpoint with this path.
    pub fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/messages" => Self::Messages,
            "/v1/responses" => Self::Responses,
            _ => return None,
        })
    }

    /// API whose form the errors have.
    pub fn dialect(self) -> &'static dyn Dialect {
        match self {
            Self::Messages => &Messages,
            Self::Chat | Self::Completions | Self::Embeddings | Self::Responses => &ChatCompletions,
        }
    }

    /// Answers a request of `tenant` without a connection, with the lowest urgency.
    ///
    /// # Errors
    /// Errors of the endpoint.
    pub async fn answer(
        self,
        app: Arc<App>,
        tenant: Tenant,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response, ApiError> {
        let body = JsonBody::of_batch(&app, tenant, headers, body)?;
        let answered = match self {
            Self::Chat => generate::chat(State(app), body).await,
            Self::Completions => generate::completions(State(app), body).await,
            Self::Embeddings => pooling::embeddings(State(app), body).await,
            Self::Messages => generate::messages(State(app), body).await,
            Self::Responses => generate::response_of_batch(State(app), body).await,
        };
        answered.map_err(ApiError::from)
    }
}
