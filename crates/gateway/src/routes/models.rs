//! Which models there are. Does not know how they are computed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::path_text::PathText;
use crate::app::App;
use crate::openai::ApiError;
use crate::openai::models::{ModelCard, ModelList};
use crate::router::Route;

/// All names of all models.
pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    let cards = app.router.routes().iter().flat_map(|route| {
        let names = &route.model.served.names;
        names.iter().map(|name| card_of(&app, route, name))
    });
    Json(ModelList::new(cards.collect())).into_response()
}

/// One name, which may have slashes in it.
pub(super) async fn card(State(app): State<Arc<App>>, PathText(id): PathText) -> Result<Response, ApiError> {
    let route = app.router.find(&id)?;
    Ok(Json(card_of(&app, route, &id)).into_response())
}

fn card_of<'a>(app: &App, route: &'a Route, name: &'a str) -> ModelCard<'a> {
    let served = &route.model.served;
    let parent = (name != served.id()).then(|| served.id());
    ModelCard::new(name, &served.root, parent, app.started_unix_s, served.max_model_len)
        .with_notice(served.notice.as_deref())
}
