//! The routes of a worker but for generation: what it is, how it is, what a gateway needs of its model. Each but the health check
//! asks for a token where there is one. Does not know requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{MatchedPath, OriginalUri, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode};
use throng_core::block_pool::CacheCursor;
use throng_http::Phase;
use throng_wire::{ARTIFACTS, DESCRIBE, Description, GENERATE, HEARTBEAT_MS, MAX_CACHE_NAMES, STATUS, WATCH};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

use super::WorkerState;
use super::generate::generate;
use crate::rejection::reject;
use crate::replica::{Replica, Status};
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

const HEALTH: &str = "/health";

/// The routes as a service.
pub(super) fn router(state: Arc<WorkerState>) -> axum::Router {
    axum::Router::new()
        .route(HEALTH, get(health))
        .route(DESCRIBE, get(describe))
        .route(STATUS, get(status))
        .route(WATCH, get(follow))
        .route(&format!("{ARTIFACTS}{{digest}}"), get(artifact))
        .route(GENERATE, post(generate))
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
    match worker.replica.status() {
        Status::Ready if !worker.is_draining() => StatusCode::OK.into_response(),
        _ => reject(ApiError::no_healthy_worker(retry_after_s())),
    }
}

async fn describe(State(worker): State<Arc<WorkerState>>) -> Json<Description> {
    Json(worker.description.clone())
}

async fn status(State(worker): State<Arc<WorkerState>>) -> Json<throng_wire::Status> {
    Json(worker.status())
}

/// A line of the status at once, with each heartbeat, and when the worker begins to drain. Ends when a draining worker has nothing
/// left to do.
async fn follow(State(worker): State<Arc<WorkerState>>) -> Body {
    let mut beat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let phase = worker.phase.clone();
    let begun = Watch { worker, beat, phase, says_draining: false, cursor: CacheCursor::default() };
    Body::from_stream(stream::unfold(begun, |mut watch| async move {
        tokio::select! {
            _ = watch.beat.tick() => {}
            _ = watch.phase.wait_for(|phase| *phase >= Phase::HandedOver), if !watch.says_draining => {}
        }
        if watch.says_draining && watch.worker.replica.load().n_sequences() == 0 {
            return None;
        }
        watch.says_draining = watch.worker.is_draining();
        let news = watch.worker.replica.0.cache_news(&mut watch.cursor);
        let cache = (!news.is_empty()).then(|| news.limited_to(MAX_CACHE_NAMES));
        let line = throng_wire::line(&throng_wire::Status { cache, ..watch.worker.status() }).ok()?;
        Some((Ok::<_, Infallible>(Bytes::from(line)), watch))
    }))
}

/// Somebody who is told again and again how a worker is.
struct Watch {
    worker: Arc<WorkerState>,
    beat: Interval,
    phase: watch::Receiver<Phase>,
    /// Has been told that it drains.
    says_draining: bool,
    /// How far it has been told what is cached.
    cursor: CacheCursor,
}

async fn artifact(
    State(worker): State<Arc<WorkerState>>,
    Path(digest): Path<String>,
) -> Result<Bytes, StatusCode> {
    let found = worker.artifacts.iter().find(|(known, _)| *known == digest);
    found.map(|(_, bytes)| bytes.clone()).ok_or(StatusCode::NOT_FOUND)
}
