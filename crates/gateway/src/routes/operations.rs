//! Version, load and metrics, for operators and routers. Read-only.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{HeaderMap, header};
use serde::Serialize;

use crate::app::App;
use crate::caller::Caller;
use crate::rejection::reject;
use throng_api::ApiError;
use throng_api::openapi;
use throng_metering::metrics::Exposition;

#[derive(Serialize)]
pub(super) struct Version {
    version: &'static str,
}

/// Version of this program.
pub(super) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// All routes and parameters, as an OpenAPI document.
pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi::document())
}

#[derive(Serialize)]
pub(super) struct Load {
    server_load: usize,
}

/// Number of sequences that run or wait, over all models.
pub(super) async fn load(State(app): State<Arc<App>>) -> Json<Load> {
    let routes = app.models.router.routes();
    let loads = routes.iter().flat_map(|route| route.loads());
    let server_load = loads.map(|load| load.n_sequences()).sum();
    Json(Load { server_load })
}

/// All metrics, in the format that the scraper prefers.
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
) -> Response {
    let exposition = Exposition::of_request(&headers);
    let fields = [(header::CONTENT_TYPE, exposition.content_type()), (header::VARY, "accept")];
    match app.observed.metrics.encode(exposition) {
        Some(text) => (fields, text).into_response(),
        None => reject(ApiError::internal_error(caller.id_text())),
    }
}
