//! Health of the server, from the states of its replicas. Does not know their work.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;
use throng_fleet::replica::Status;

use crate::app::App;
use crate::rejection::reject;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Succeeds if the process answers and at least one model may answer again without a restart.
pub(super) async fn live(State(app): State<Arc<App>>) -> Response {
    if !app.is_live() {
        return reject(ApiError::no_healthy_worker(retry_after_s()));
    }
    ok(&app)
}

/// Succeeds if every model can answer and new requests are admitted.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_draining() {
        return reject(ApiError::shutting_down(retry_after_s()));
    }
    if let Some(progress) = &app.models.loading {
        return progress.health();
    }
    let is_ready = app.models.router.routes().iter().all(|route| route.status() == Status::Ready)
        && app.models.upstreams.now().iter().all(|model| !model.dispatcher.ready().is_empty());
    if !is_ready {
        return reject(ApiError::no_healthy_worker(retry_after_s()));
    }
    ok(&app)
}

/// Success. The body lists failing parts of the server, and is empty without any: a database that cannot be
/// written stops no request, so that the server remains in service.
fn ok(app: &App) -> Response {
    let fault = app.policy.ledger.as_ref().and_then(|ledger| ledger.write_fault());
    let Some(fault) = fault else { return StatusCode::OK.into_response() };
    let told = json!({"status": "degraded", "database": format!("cannot be written: {fault}")});
    (StatusCode::OK, Json(told)).into_response()
}
