//! Kept responses: read, streamed again, cancelled and deleted. Does not know how they are generated.

pub(super) mod conversations;
mod page;
mod websocket;

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use http::header;
use serde_json::json;
use serde_json::value::RawValue;
use throng_api::ApiError;
use throng_state::conversations::ItemPage;
use throng_state::responses::Responses;

use self::page::{ItemList, page_query};
pub(super) use self::websocket::connect;
use super::json_body::AppState;
use super::path_text::PathText;
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;
use crate::turns::tail;

/// Kept responses of a caller.
struct Mine {
    responses: Responses,
    tenant: String,
}

impl Mine {
    /// # Errors
    /// 404 on a server without a store.
    fn of(app: &App, caller: &Caller) -> Result<Self, ApiError> {
        let responses = app.responses(&caller.key_holder()).ok_or_else(ApiError::nothing_kept)?;
        Ok(Self { responses, tenant: caller.tenant().0.to_string() })
    }
}

fn json_of(raw: &RawValue) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], raw.get().to_owned()).into_response()
}

/// `GET /v1/responses/{id}`: the response, or its events.
pub(super) async fn get(
    axum::extract::State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
    RawQuery(query): RawQuery,
) -> Result<Response, Rejection> {
    let mine = Mine::of(&app, &caller)?;
    let (mut is_streaming, mut after) = (false, None);
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes()) {
        match &*name {
            "stream" => is_streaming = value == "true",
            "starting_after" => {
                let number = value
                    .parse()
                    .map_err(|_| ApiError::invalid_type("starting_after", "an integer", "something else"))?;
                after = Some(number);
            }
            _ => {}
        }
    }
    if is_streaming {
        return Ok(tail(&app, mine.responses, mine.tenant, id, after).await?);
    }
    Ok(json_of(&mine.responses.shown(&mine.tenant, &id).await?))
}

/// `DELETE /v1/responses/{id}`.
pub(super) async fn delete(
    axum::extract::State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let mine = Mine::of(&app, &caller)?;
    mine.responses.delete(&mine.tenant, &id).await?;
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})).into_response())
}

/// `POST /v1/responses/{id}/cancel`.
pub(super) async fn cancel(
    axum::extract::State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let mine = Mine::of(&app, &caller)?;
    Ok(json_of(&mine.responses.cancel(&mine.tenant, &id).await?.response))
}

/// `GET /v1/responses/{id}/input_items`.
pub(super) async fn input_items(
    axum::extract::State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
    RawQuery(query): RawQuery,
) -> Result<Response, Rejection> {
    let mine = Mine::of(&app, &caller)?;
    let range = page_query(query.as_deref().unwrap_or_default())?;
    let record = mine.responses.get(&mine.tenant, &id).await?;
    let page = ItemPage::of(record.input, &range)?;
    Ok(axum::Json(ItemList::new(&page)).into_response())
}
