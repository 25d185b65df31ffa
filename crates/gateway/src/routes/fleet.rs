//! How the fleet's workers are, for operators. Does not know how this is found out.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::app::App;
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

/// All workers in the order of the configuration.
pub(super) async fn workers(State(app): State<Arc<App>>) -> Response {
    let links = app.workers.get().map_or(&[][..], Vec::as_slice);
    Json(Workers { workers: links.iter().map(worker).collect() }).into_response()
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
