//! Conversations and their items. Does not know how responses add to them.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};
use throng_api::ApiError;
use throng_api::responses::{ConversationBody, Item, ItemsBody};
use throng_state::conversations::{Conversation, Conversations, ItemPage};

use super::super::json_body::{AppState, JsonBody, with_ignored};
use super::super::path_text::PathText;
use super::Mine;
use super::page::{ItemList, page_query};
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;

type Answer = Result<Response, Rejection>;
type Who = Extension<Arc<Caller>>;

fn mine(app: &App, caller: &Caller) -> Result<(Conversations, String), ApiError> {
    let Mine { responses, tenant } = Mine::of(app, caller)?;
    Ok((responses.conversations().clone(), tenant))
}

fn shown(conversation: &Conversation) -> Value {
    let metadata: Value = serde_json::from_str(conversation.metadata.get()).unwrap_or_default();
    json!({
        "id": conversation.id, "object": "conversation", "created_at": conversation.created_unix_s,
        "metadata": metadata,
    })
}

/// `POST /v1/conversations`.
pub(in super::super) async fn create(State(app): AppState, body: JsonBody) -> Answer {
    let (conversations, tenant) = mine(&app, &body.caller)?;
    let (read, _memory) = body.read(ConversationBody::parse)?;
    let created = conversations.create(&tenant, read.metadata_or_none(), read.items).await?;
    Ok(with_ignored(&app, Json(shown(&created)), &read.ignored))
}

/// `GET /v1/conversations/{id}`.
pub(in super::super) async fn get(
    State(app): AppState,
    Extension(caller): Who,
    PathText(id): PathText,
) -> Answer {
    let (conversations, tenant) = mine(&app, &caller)?;
    Ok(Json(shown(&conversations.get(&tenant, &id).await?)).into_response())
}

/// `POST /v1/conversations/{id}`: replaces its metadata.
pub(in super::super) async fn update(State(app): AppState, PathText(id): PathText, body: JsonBody) -> Answer {
    let (conversations, tenant) = mine(&app, &body.caller)?;
    let (read, _memory) = body.read(ConversationBody::parse)?;
    let updated = conversations.update(&tenant, &id, read.metadata_or_none()).await?;
    Ok(with_ignored(&app, Json(shown(&updated)), &read.ignored))
}

/// `DELETE /v1/conversations/{id}`.
pub(in super::super) async fn delete(
    State(app): AppState,
    Extension(caller): Who,
    PathText(id): PathText,
) -> Answer {
    let (conversations, tenant) = mine(&app, &caller)?;
    conversations.delete(&tenant, &id).await?;
    Ok(Json(json!({"id": id, "object": "conversation.deleted", "deleted": true})).into_response())
}

/// `GET /v1/conversations/{id}/items`.
pub(in super::super) async fn items(
    State(app): AppState,
    Extension(caller): Who,
    PathText(id): PathText,
    RawQuery(query): RawQuery,
) -> Answer {
    let (conversations, tenant) = mine(&app, &caller)?;
    let range = page_query(query.as_deref().unwrap_or_default())?;
    let page = conversations.items(&tenant, &id, &range).await?;
    Ok(Json(ItemList::new(&page)).into_response())
}

/// `POST /v1/conversations/{id}/items`.
pub(in super::super) async fn add(State(app): AppState, PathText(id): PathText, body: JsonBody) -> Answer {
    let (conversations, tenant) = mine(&app, &body.caller)?;
    let (read, _memory) = body.read(ItemsBody::parse)?;
    let items = conversations.add(&tenant, &id, read.items).await?;
    let page = ItemPage { items, has_more: false };
    Ok(with_ignored(&app, Json(ItemList::new(&page)), &read.ignored))
}

/// `GET /v1/conversations/{id}/items/{item_id}`.
pub(in super::super) async fn item(
    State(app): AppState,
    Extension(caller): Who,
    Path((id, item_id)): Path<(String, String)>,
) -> Answer {
    let (conversations, tenant) = mine(&app, &caller)?;
    let item: Item = conversations.item(&tenant, &id, &item_id).await?;
    Ok(Json(item).into_response())
}

/// `DELETE /v1/conversations/{id}/items/{item_id}`.
pub(in super::super) async fn delete_item(
    State(app): AppState,
    Extension(caller): Who,
    Path((id, item_id)): Path<(String, String)>,
) -> Answer {
    let (conversations, tenant) = mine(&app, &caller)?;
    Ok(Json(shown(&conversations.delete_item(&tenant, &id, &item_id).await?)).into_response())
}
