//! Whether the server lives and whether it can answer. Refuses to guess: an engine says for itself.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::app::App;
use crate::generation::retry_after_s;
use crate::openai::ApiError;

/// The process answers, and at least one model may answer again without a restart.
pub(super) async fn live(State(app): State<Arc<App>>) -> Response {
    let routes = app.router.routes();
    if !routes.is_empty() && routes.iter().all(|route| route.replica.is_lost()) {
        return ApiError::no_healthy_worker(retry_after_s()).into_response();
    }
    StatusCode::OK.into_response()
}

/// Every model can answer, and new requests are welcome.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_draining() {
        return ApiError::shutting_down(retry_after_s()).into_response();
    }
    if !app.router.routes().iter().all(|route| route.replica.is_healthy()) {
        return ApiError::no_healthy_worker(retry_after_s()).into_response();
    }
    StatusCode::OK.into_response()
}
