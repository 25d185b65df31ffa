//! Which models there are. Refuses to know how they are computed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::app::App;
use crate::openai::ApiError;
use crate::openai::models::ModelCard;
use crate::router::Route;

/// A card with what people should be told about the model once.
#[derive(Serialize)]
struct NoticedCard<'a> {
    #[serde(flatten)]
    card: ModelCard<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<&'a str>,
}

#[derive(Serialize)]
struct NoticedList<'a> {
    object: &'static str,
    data: Vec<NoticedCard<'a>>,
}

/// All names of all models.
pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    let cards = app.router.routes().iter().flat_map(|route| {
        let names = &route.model.served.names;
        names.iter().map(|name| card_of(&app, route, name))
    });
    Json(NoticedList { object: "list", data: cards.collect() }).into_response()
}

/// One name, which may have slashes in it.
pub(super) async fn card(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let route = app.router.find(&id)?;
    Ok(Json(card_of(&app, route, &id)).into_response())
}

fn card_of<'a>(app: &App, route: &'a Route, name: &'a str) -> NoticedCard<'a> {
    let served = &route.model.served;
    let parent = (name != served.id()).then(|| served.id());
    let card = ModelCard::new(name, &served.root, parent, app.started_unix_s, served.max_model_len);
    NoticedCard { card, notice: served.notice.as_deref() }
}
