//! Routes of a worker except generation: description, state, and the artifacts of its model. All but the
//! health check require a token if one is set. Does not know requests.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{MatchedPath, OriginalUri, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, StatusCode};
use throng_api::ApiError;
use throng_wire::{ARTIFACTS, BLOCKS, DESCRIBE, Description, GENERATE, STATUS, WATCH};

use super::WorkerState;
use super::blocks::blocks;
use super::generate::generate;
use crate::rejection::reject;
use throng_http::retry_after::retry_after_s;

const HEALTH: &str = "/health";

/// Service for the routes.
pub(super) fn router(state: Arc<WorkerState>) -> axum::Router {
    axum::Router::new()
        .route(HEALTH, get(health))
        .route(DESCRIBE, get(describe))
        .route(STATUS, get(status))
        .route(WATCH, get(follow))
        .route(&format!("{ARTIFACTS}{{digest}}"), get(artifact))
        .route(GENERATE, post(generate))
        .route(BLOCKS, post(blocks))
        .method_not_allowed_fallback(async || reject(ApiError::method_not_allowed("GET, POST")))
        .route_layer(middleware::from_fn_with_state(state.clone(), authorize))
        .fallback(unknown_url)
        .with_state(state)
}

async fn authorize(
    State(worker): State<Arc<WorkerState>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match worker.tokens.authenticate(request.headers()) {
        Err(error) if path.as_str() != HEALTH => reject(error),
        _ => next.run(request).await,
    };
    response.extensions_mut().insert(path);
    response
}

async fn unknown_url(method: Method, OriginalUri(uri): OriginalUri) -> Response {
    reject(ApiError::unknown_url(method.as_str(), uri.path()))
}

async fn health(State(worker): State<Arc<WorkerState>>) -> Response {
    match worker.service.is_ready() {
        true => StatusCode::OK.into_response(),
        false => reject(ApiError::no_healthy_worker(retry_after_s())),
    }
}

async fn describe(State(worker): State<Arc<WorkerState>>) -> Json<Description> {
    Json(worker.service.description())
}

async fn status(State(worker): State<Arc<WorkerState>>) -> Json<throng_wire::Status> {
    Json(worker.service.status())
}

async fn follow(State(worker): State<Arc<WorkerState>>) -> Body {
    Body::from_stream(worker.service.clone().watch().map(Ok::<_, Infallible>))
}

async fn artifact(
    State(worker): State<Arc<WorkerState>>,
    Path(digest): Path<String>,
) -> Result<Bytes, StatusCode> {
    worker.service.artifact(&digest).ok_or(StatusCode::NOT_FOUND)
}
