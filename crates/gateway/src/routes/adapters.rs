//! Loads and unloads adapters while the server runs, as vLLM does. Does not know how an adapter is read.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use throng_api::openai::{LoadAdapterRequest, UnloadAdapterRequest};
use throng_api::{ApiError, IgnoredParameters};

use super::json_body::{AppState, JsonBody, with_ignored};
use crate::adapter_errors::refused_update;
use crate::app::App;
use crate::generation::on_blocking_thread;
use crate::rejection::Rejection;

/// `POST /v1/load_lora_adapter`.
pub(super) async fn load(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, |app, body| {
        let key_holder = body.caller.key_holder();
        let (request, _memory) = body.read(LoadAdapterRequest::parse)?;
        let LoadAdapterRequest { name, path, in_place, model, ignored } = request;
        let route = app.find_model(&key_holder, model.as_deref())?;
        let has_adapter = |route: &crate::router::Route| route.model.adapters.has(&name);
        let elsewhere = app.models.router.routes().iter().any(|other| {
            let is_other = other.model.served.id() != route.model.served.id();
            other.model.served.names.contains(&name) || is_other && has_adapter(other)
        });
        if elsewhere {
            return Err(ApiError::invalid_value("lora_name", format!("A model is named '{name}'.")));
        }
        let loaded = route.model.adapters.load(&name, &path, in_place);
        loaded.map_err(|error| refused_update(&name, error))?;
        tracing::info!(adapter = name, path, "loaded");
        Ok((format!("Success: LoRA adapter '{name}' added successfully."), ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/unload_lora_adapter`.
pub(super) async fn unload(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, |app, body| {
        let key_holder = body.caller.key_holder();
        let (UnloadAdapterRequest { name, ignored }, _memory) = body.read(UnloadAdapterRequest::parse)?;
        let routes = app.models.router.routes();
        let route = routes.iter().find(|route| route.model.adapters.has(&name)).or(routes.first());
        let route = route.ok_or_else(|| ApiError::adapter_not_found(&name))?;
        if !route.is_permitted(&key_holder, route.model.served.id()) {
            return Err(ApiError::permission_denied());
        }
        route.model.adapters.unload(&name).map_err(|error| refused_update(&name, error))?;
        tracing::info!(adapter = name, "unloaded");
        Ok((format!("Success: LoRA adapter '{name}' removed successfully."), ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// Name of the model that a request updates, or of an adapter that it has; by default the only model's.
fn updated_model(app: &App, body: &[u8]) -> Option<String> {
    let request: Value = serde_json::from_slice(body).ok()?;
    let name = |key: &str| Some(request.get(key)?.as_str()?.to_owned());
    let names = app.models.on_demand.as_ref()?.names();
    name("model").or(if names.len() == 1 { names.into_iter().next() } else { name("lora_name") })
}

/// Runs the update on a blocking thread, since it reads files.
async fn answer(
    app: Arc<App>,
    body: JsonBody,
    work: impl FnOnce(&App, JsonBody) -> Result<(String, IgnoredParameters), ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (caller, state) = (body.caller.clone(), app.clone());
    let named = || updated_model(&app, body.bytes()).map(Into::into);
    let _presence = app.bring_model(&caller.key_holder(), named).await?;
    let (text, ignored) =
        on_blocking_thread(&app.work.turns, &caller, body.n_bytes(), move |_| work(&state, body)).await?;
    Ok(with_ignored(&app, text, &ignored))
}
