//! Traces of finished requests. Each caller finds only its own requests: those of the key's project, or of
//! the key if it has none; the operator finds all. Does not measure.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

use super::path_text::PathText;
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;
use throng_api::ApiError;
use throng_auth::Tenant;
use throng_metering::observation::{Explanation, Summary};

/// Maximum number of requests in one list.
const MAX_LISTED: usize = 50;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Summary<'a>>,
    /// Number of tenants with a recent request, the caller included.
    active_tenants: usize,
}

/// The caller's latest requests, the newest first.
pub(super) async fn latest(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
) -> Response {
    let reports = app.observed.recent.latest(visible_to(&caller.key_holder()), MAX_LISTED);
    let data = reports.iter().map(|report| Summary::new(report)).collect();
    Json(List { object: "list", data, active_tenants: app.observed.recent.n_active_tenants() })
        .into_response()
}

/// Tenant whose requests are shown; `None` for all.
fn visible_to(key_holder: &Tenant) -> Option<&str> {
    (!key_holder.is_operator).then_some(&*key_holder.id.0)
}

/// One of the caller's requests.
pub(super) async fn request(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let found = app.observed.recent.find(visible_to(&caller.key_holder()), &id);
    let report = found.ok_or_else(|| ApiError::request_not_found(&id))?;
    Ok(Json(Explanation::new(&report)).into_response())
}
