//! Loads and unloads models on demand for the operator. Does not know how a model is loaded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bodies;
use crate::app::App;
use crate::on_demand::{OnDemandModels, Serving};
use crate::rejection::Rejection;
use crate::routes::json_body::{AppState, JsonBody};
use throng_api::ApiError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    model: String,
}

/// `POST /v1/models/load`: answers when the model is loaded.
pub(in crate::routes) async fn load(State(app): AppState, body: JsonBody) -> Result<Json<Value>, Rejection> {
    let (Named { model }, _memory) = body.read(bodies::parse::<Named>)?;
    models(&app, &model)?.load(&place(&app), &model).await?;
    Ok(Json(json!({"model": model, "state": "loaded"})))
}

/// `POST /v1/models/unload`: answers when its requests have ended and its memory is free.
pub(in crate::routes) async fn unload(
    State(app): AppState,
    body: JsonBody,
) -> Result<Json<Value>, Rejection> {
    let (Named { model }, _memory) = body.read(bodies::parse::<Named>)?;
    models(&app, &model)?.unload(&place(&app), &model).await?;
    Ok(Json(json!({"model": model, "state": "unloaded"})))
}

/// `GET /admin/models`: models that are loaded on demand, with their states.
pub(in crate::routes) async fn list(State(app): AppState) -> Json<Value> {
    let states = app.models.on_demand.iter().flat_map(|models| models.states());
    let data: Vec<Value> = states.map(|(model, state)| json!({"model": model, "state": state})).collect();
    Json(json!({"object": "list", "data": data}))
}

fn place(app: &Arc<App>) -> Arc<dyn Serving> {
    app.clone()
}

fn models<'a>(app: &'a App, name: &str) -> Result<&'a Arc<OnDemandModels>, ApiError> {
    app.models.on_demand.as_ref().ok_or_else(|| ApiError::model_not_found(name))
}
