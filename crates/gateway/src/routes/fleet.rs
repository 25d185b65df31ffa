//! How the fleet's workers are, for operators. Does not know how this is found out.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

use crate::app::App;
use crate::connection::RequestContext;
use crate::openai::ApiError;
use crate::replica::Link;

#[derive(Serialize)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Serialize)]
struct Worker {
    url: String,
    state: &'static str,
    reason: Option<String>,
    seconds: u64,
    models: Vec<String>,
    fingerprint: String,
    running: usize,
    waiting: usize,
    used_blocks: usize,
    total_blocks: usize,
}

/// All workers in the order of the configuration. Keys of a database belong to users, who are not told.
pub(super) async fn workers(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Arc<RequestContext>>,
) -> Result<Response, ApiError> {
    if context.key_holder().key.is_some() {
        return Err(ApiError::permission_denied());
    }
    let links = app.workers.get().map_or(&[][..], Vec::as_slice);
    Ok(Json(Workers { workers: links.iter().map(worker).collect() }).into_response())
}

fn worker(link: &Arc<Link>) -> Worker {
    let report = link.report();
    Worker {
        url: link.endpoint.address.to_string(),
        state: report.state,
        reason: report.reason,
        seconds: report.since.elapsed().as_secs(),
        models: report.names,
        fingerprint: report.fingerprint.to_string(),
        running: report.load.n_running,
        waiting: report.load.n_waiting,
        used_blocks: report.load.used_blocks,
        total_blocks: report.load.total_blocks,
    }
}
