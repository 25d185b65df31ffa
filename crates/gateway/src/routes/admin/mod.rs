//! The operator's API on the operator's listener: keys, limits, draining. Does not know how keys are
//! stored.

pub(super) mod audit;
mod bodies;
pub(super) mod on_demand;
pub(super) mod rollouts;
mod shown;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use throng_store::{ApiKey, KeyTable, NewKey, Store, StoreError};

use self::bodies::{ChangeKey, CreateKey, LimitBody};
use self::shown::{limits_json, shown_key};
use super::json_body::{AppState, JsonBody};
use super::path_text::PathText;
use crate::app::App;
use crate::rejection::Rejection;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// `GET /admin/keys`: all keys, without their secrets.
pub(super) async fn list_keys(State(app): AppState) -> Result<Json<Value>, Rejection> {
    let KeyTable { revision, keys } = answered(store(&app)?.keys().await)?;
    let data: Vec<Value> = keys.iter().map(shown_key).collect();
    Ok(Json(json!({"object": "list", "revision": revision, "data": data})))
}

/// `POST /admin/keys`: a new key; its secret is in this answer only.
pub(super) async fn create_key(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let (body, _memory) = body.read(bodies::parse::<CreateKey>)?;
    let (expires_unix_s, limits) = (body.expires_unix_s()?, body.limits()?);
    let CreateKey { organisation, project, name, models, .. } = body;
    let named = |name: Option<String>| name.unwrap_or_else(|| "default".to_owned());
    let (organisation, project) = (named(organisation), named(project));
    let name = name.unwrap_or_default();
    let new = NewKey { organisation, project, name, expires_unix_s, models, limits };
    let created = answered(store(&app)?.create_key(new).await)?;
    refresh(&app).await;
    let mut shown = shown_key(&created.key);
    shown["key"] = created.secret().into();
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

/// `POST /admin/keys/{id}`: changes a key; absent fields leave their values.
pub(super) async fn change_key(
    State(app): AppState,
    PathText(id): PathText,
    body: JsonBody,
) -> Result<Json<Value>, Rejection> {
    let (body, _memory) = body.read(bodies::parse::<ChangeKey>)?;
    let key = answered(store(&app)?.change_key(&id, body.change()?).await)?;
    Ok(Json(changed(&app, &key).await))
}

/// `POST /admin/keys/{id}/revoke`: this server refuses the key from now on, others within a second.
pub(super) async fn revoke_key(
    State(app): AppState,
    PathText(id): PathText,
) -> Result<Json<Value>, Rejection> {
    let key = answered(store(&app)?.revoke_key(&id).await)?;
    Ok(Json(changed(&app, &key).await))
}

/// `GET /admin/organisations`: organisations with their projects, and the limits of both.
pub(super) async fn list_organisations(State(app): AppState) -> Result<Json<Value>, Rejection> {
    let keys = answered(store(&app)?.keys().await)?.keys;
    Ok(Json(json!({"object": "list", "data": shown::organisations(&keys)})))
}

/// `POST /admin/limits`: changes how much an organisation, a project or each of its users may use.
pub(super) async fn limit(State(app): AppState, body: JsonBody) -> Result<Json<Value>, Rejection> {
    let (body, _memory) = body.read(bodies::parse::<LimitBody>)?;
    let limits = answered(store(&app)?.limit(&body.scope()?, body.change()?).await)?;
    refresh(&app).await;
    Ok(Json(json!({"limits": limits_json(&limits)})))
}

/// `POST /admin/drain`: the server refuses new requests, finishes the running ones and ends, as after
/// SIGTERM.
pub(super) async fn drain(State(app): AppState) -> (StatusCode, Json<Value>) {
    app.lifecycle.ending.notify_one();
    (StatusCode::ACCEPTED, Json(json!({"status": "draining"})))
}

fn store(app: &App) -> Result<&Arc<dyn Store>, ApiError> {
    app.policy.ledger.as_deref().and_then(|ledger| ledger.store()).ok_or_else(ApiError::no_database)
}

async fn changed(app: &App, key: &ApiKey) -> Value {
    refresh(app).await;
    shown_key(key)
}

/// Reads the keys again, so that a change takes effect at once. If the database fails now, the change takes
/// effect within a second of its recovery.
async fn refresh(app: &App) {
    if let (Some(keys), Ok(store)) = (app.policy.keys.stored(), store(app)) {
        let _ = keys.refresh(&**store).await;
    }
}

/// Error for the operator from a refusal of the database.
fn answered<T>(result: Result<T, StoreError>) -> Result<T, ApiError> {
    result.map_err(|error| match error {
        StoreError::UnknownKey(_) | StoreError::UnknownScope(_) => ApiError::not_found(&error.to_string()),
        StoreError::AmbiguousKey(_) | StoreError::Invalid { .. } | StoreError::TooManyKeys(_) => {
            ApiError::refused_change(error.to_string())
        }
        other => {
            tracing::warn!(error = %other, "the database does not answer the admin API");
            ApiError::overloaded("The database does not answer.", retry_after_s())
        }
    })
}
