//! Loads and unloads models on demand for the operator. Does not know how a model is loaded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bodies;
use crate::on_demand::Serving;
use crate::rejection::Rejection;
use crate::routes::json_body::{AppState, JsonBody};
use throng_api::ApiError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    model: String,
    /// vLLM's levels of sleep, 1 and 2, which are one here.
    #[serde(default)]
    level: Option<u8>,
}

/// Orders of the operator about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routes) enum Order {
    /// `POST /v1/models/load`: load a model on demand.
    Load,
    /// `POST /v1/models/unload`: unload a model on demand.
    Unload,
    /// `POST /v1/models/sleep`: unload any model.
    Sleep,
    /// `POST /v1/models/wake`: load any model.
    Wake,
}

/// Answers when it is done: requests of a model that is unloaded have ended then, and its memory is free.
pub(in crate::routes) async fn obey(
    order: Order,
    State(app): AppState,
    body: JsonBody,
) -> Result<Json<Value>, Rejection> {
    let (Named { model, level }, _memory) = body.read(bodies::parse::<Named>)?;
    if level.is_some_and(|level| order != Order::Sleep || !(1..=2).contains(&level)) {
        return Err(ApiError::invalid_value("level", "Only sleep has levels: 1 or 2.").into());
    }
    let models = &app.models;
    if models.router.get(&model).is_some_and(|route| route.model.is_remote())
        || models.upstreams.find(&model).is_some()
    {
        let message = "This model is computed by a worker or another engine, and loaded and unloaded there.";
        return Err(ApiError::invalid_value("model", message).into());
    }
    let all = models.on_demand.as_ref().ok_or_else(|| ApiError::model_not_found(&model))?;
    let (place, may_be_main) = (app.clone() as Arc<dyn Serving>, matches!(order, Order::Sleep | Order::Wake));
    match order {
        Order::Load | Order::Wake => all.load(&place, &model, may_be_main).await?,
        Order::Unload | Order::Sleep => all.unload(&place, &model, may_be_main).await?,
    }
    Ok(Json(json!({"model": model, "state": all.state(&model)})))
}

/// `GET /admin/models`: models that are loaded on demand, with their states.
pub(in crate::routes) async fn list(State(app): AppState) -> Json<Value> {
    let states = app.models.on_demand.iter().flat_map(|models| models.states());
    let data: Vec<Value> = states.map(|(model, state)| json!({"model": model, "state": state})).collect();
    Json(json!({"object": "list", "data": data}))
}
