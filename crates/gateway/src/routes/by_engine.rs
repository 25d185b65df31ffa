//! Requests for models of upstream engines at endpoints without generated text. Does not know their
//! content.

use std::ops::ControlFlow;

use axum::response::Response;
use throng_fleet::upstream::{Endpoint, named_model};

use super::json_body::{JsonBody, Received};
use crate::app::App;
use crate::upstream;
use throng_api::ApiError;

/// Answer of an engine, if the request names its model or that is the only one; else the request.
pub(super) async fn answer_by_engine(
    app: &App,
    body: JsonBody,
    endpoint: Endpoint,
) -> ControlFlow<Result<Response, ApiError>, JsonBody> {
    let mut model = app.models.upstreams.asked_for(None, body.bytes());
    if model.is_none() && app.models.router.routes().is_empty() && named_model(body.bytes()).is_none() {
        model = app.models.upstreams.only();
    }
    let Some(model) = model else { return ControlFlow::Continue(body) };
    let Received { body, caller, exchange } = body.into_received();
    let setting = match app.upstream_setting() {
        Ok(setting) => setting,
        Err(error) => return ControlFlow::Break(Err(error)),
    };
    ControlFlow::Break(upstream::pass_through(&setting, &model, endpoint, body, (caller, exchange)).await)
}

/// Returns the body, unless it names a model of an upstream engine, which has no such API.
///
/// # Errors
/// 400 that names the path to use instead.
pub(super) fn refuse_engines(app: &App, body: JsonBody, instead: &str) -> Result<JsonBody, ApiError> {
    match app.models.upstreams.asked_for(None, body.bytes()) {
        Some(_) => {
            let reason = format!("Models of upstream engines have no such API here; use {instead}.");
            Err(ApiError::unsupported_by_model("model", &reason))
        }
        None => Ok(body),
    }
}
