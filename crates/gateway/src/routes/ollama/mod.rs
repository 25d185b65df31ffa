//! Ollama's lists and descriptions of models, and its other operations on models.

mod pull;
mod stay;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use throng_api::ApiError;
use throng_api::ollama::{ModelEntry, ModelList};

pub(super) use self::pull::pull;
pub(super) use self::stay::{apply_stay, load_only};
use super::json_body::{AppState, JsonBody};
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;

/// Version of Ollama whose API is implemented.
const API_VERSION: &str = "0.12.0";

/// `GET /api/tags`: all models that the key permits.
pub(super) async fn tags(State(app): AppState, Extension(caller): Extension<Arc<Caller>>) -> Response {
    let key_holder = caller.key_holder();
    let upstreams = app.models.upstreams.now();
    let names = upstreams.iter().flat_map(|model| model.names.iter().map(move |name| (model, name)));
    let permitted = names.filter(|(model, name)| key_holder.permits(name, &model.names));
    let mut models = served(&app, &caller);
    models.extend(permitted.map(|(_, name)| ModelEntry::new(name.clone(), None)));
    let on_demand = app.models.on_demand.iter().flat_map(|models| models.names());
    let absent =
        on_demand.filter(|name| app.models.router.get(name).is_none() && key_holder.permits(name, &[]));
    models.extend(absent.map(|name| ModelEntry::new(name, None)));
    Json(ModelList { models }).into_response()
}

/// `GET /api/ps`: the models in memory that the key permits.
pub(super) async fn running(State(app): AppState, Extension(caller): Extension<Arc<Caller>>) -> Response {
    Json(ModelList { models: served(&app, &caller) }).into_response()
}

/// Served models that the key permits, one entry for each name.
fn served(app: &App, caller: &Caller) -> Vec<ModelEntry> {
    let key_holder = caller.key_holder();
    let mut models = Vec::new();
    for route in app.models.router.routes().iter() {
        let served = &route.model.served;
        let n_bytes = served.held.weights.saturating_add(served.held.kv);
        let stay = app.models.on_demand.as_ref().and_then(|models| models.leaves_in(served.id()));
        let permitted = served.names.iter().filter(|name| route.is_permitted(&key_holder, name));
        models.extend(permitted.map(|name| {
            let entry = ModelEntry::new(name.clone(), Some(served.max_model_len)).with_bytes(n_bytes);
            stay.into_iter().fold(entry, ModelEntry::with_stay)
        }));
    }
    models
}

/// `GET /` of the listener for Ollama's clients, by which they recognize a server.
pub(super) async fn greeting() -> &'static str {
    "Ollama is running"
}

/// `/api/delete`.
pub(super) async fn delete() -> Rejection {
    ApiError::not_over_http("Models are removed on the server's machine alone: throng rm NAME.").into()
}

/// `POST /api/copy`.
pub(super) async fn copy() -> Rejection {
    ApiError::not_over_http(
        "Models get further names by the server's settings alone: --served-model-name, or [[gateway.routing.aliases]].",
    )
    .into()
}

/// `POST /api/create`, `POST /api/push` and uploads for them.
pub(super) async fn create() -> Rejection {
    ApiError::not_over_http("This server makes and publishes no models.").into()
}

/// `GET /api/version`: the version of Ollama's API, since clients refuse a server that is older than
/// theirs.
pub(super) async fn version() -> Response {
    let throng = env!("CARGO_PKG_VERSION");
    Json(serde_json::json!({"version": API_VERSION, "throng": throng})).into_response()
}

#[derive(Deserialize)]
struct ShowRequest {
    #[serde(alias = "name")]
    model: String,
}

/// `POST /api/show`.
pub(super) async fn show(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let key_holder = body.caller.key_holder();
    let request: ShowRequest =
        serde_json::from_slice(body.bytes()).map_err(|_| ApiError::missing_required_parameter("model"))?;
    // Clients ask about each model of a list in turn: that must not load all of them.
    let permitted = app.models.on_demand.as_ref().filter(|_| key_holder.permits(&request.model, &[]));
    if let Some(known) = permitted.and_then(|models| models.description_of_absent(&request.model)) {
        return Ok(Json(known).into_response());
    }
    let _presence = body.bring_model(&app, Some(&request.model)).await?;
    let route = app.find_model(&key_holder, Some(&request.model))?;
    Ok(Json(route.model.served.description()).into_response())
}
