//! Ollama's `keep_alive`, and requests that only load or unload a model.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use throng_api::ollama::{LoadAnswer, Stay, StayRequest};

use crate::app::App;
use crate::rejection::Rejection;
use crate::routes::json_body::JsonBody;

/// Applies the `keep_alive` of a request, if the operator unloads unused models.
pub(in crate::routes) fn apply_stay(app: &App, body: &JsonBody) {
    if let Some(request) = app.models.absent_models().and_then(|_| StayRequest::peek(body.bytes())) {
        keep(app, body, &request);
    }
}

/// Answers a request without a prompt, which loads its model, or unloads it with a `keep_alive` of 0;
/// `None` for a request for text. Applies its `keep_alive` in both cases.
///
/// # Errors
/// 404 for an unknown name; 503 for a model that is not loaded in time.
pub(in crate::routes) async fn load_only(
    app: &Arc<App>,
    body: &JsonBody,
    is_chat: bool,
) -> Result<Option<Response>, Rejection> {
    // Others are in memory whatever a request says, so that a long body need not be read for that.
    let may_be_empty = app.models.absent_models().is_some() || body.n_bytes() <= MAX_EMPTY_BYTES;
    let Some(request) = may_be_empty.then(|| StayRequest::peek(body.bytes())).flatten() else {
        return Ok(None);
    };
    let Some(name) = request.model.as_deref().filter(|_| request.is_empty) else {
        keep(app, body, &request);
        return Ok(None);
    };
    let goes = request.stay == Some(Stay(Duration::ZERO));
    let is_absent = app.models.absent_models().and_then(|models| models.state(name)) == Some("unloaded");
    if !(goes && is_absent) {
        body.bring_model(app, Some(name)).await?;
    }
    let key_holder = body.caller.key_holder();
    let is_known = app.usable_names(&key_holder).iter().any(|known| known == name);
    if !is_known
        && !app.models.upstreams.find(name).is_some_and(|model| key_holder.permits(name, &model.names))
    {
        app.find_model(&key_holder, Some(name))?;
    }
    if keep(app, body, &request)
        && goes
        && let Some(models) = app.models.absent_models()
    {
        models.gone(name).await;
    }
    Ok(Some(Json(LoadAnswer::new(name, is_chat, !goes)).into_response()))
}

/// Longest body in bytes that is checked for a missing prompt if no model is loaded on demand.
const MAX_EMPTY_BYTES: usize = 4096;

/// Returns whether a request has set how long its model stays.
fn keep(app: &App, body: &JsonBody, request: &StayRequest) -> bool {
    let (Some(models), Some(name), Some(Stay(stay))) =
        (app.models.absent_models(), request.model.as_deref(), request.stay)
    else {
        return false;
    };
    body.caller.key_holder().permits(name, &[]) && models.keep(name, stay)
}
