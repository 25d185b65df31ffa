//! Lists and cards of models. Does not know how they are computed.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use throng_fleet::upstream::UpstreamModel;

use super::path_text::PathText;
use crate::app::App;
use crate::caller::Caller;
use crate::config::ModelAlias;
use crate::rejection::Rejection;
use crate::router::Route;
use http::HeaderMap;
use throng_api::anthropic::ModelPage;
use throng_api::openai::models::{ModelCard, ModelList};

/// Names of all models and adapters that the key permits.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
) -> Response {
    let key_holder = caller.key_holder();
    let routes = app.models.router.routes();
    let adapters: Vec<_> = routes.iter().map(|route| route.model.adapters.list()).collect();
    let cards = routes.iter().zip(&adapters).flat_map(|(route, adapters)| {
        let permitted = |name: &str| route.is_permitted(&key_holder, name);
        let names = route.model.served.names.iter().filter(move |name| permitted(name));
        let adapters = adapters.iter().filter(move |(name, _)| permitted(name));
        let names = names.map(|name| card_of(&app, route, name));
        names.chain(adapters.map(|(name, path)| adapter_card(&app, route, name, path)))
    });
    let upstreams = app.models.upstreams.now();
    let names = upstreams.iter().flat_map(|model| model.names.iter().map(move |name| (model, name)));
    let permitted = names.filter(|(model, name)| key_holder.permits(name, &model.names));
    let cards = cards.chain(permitted.map(|(model, name)| upstream_card(&app, model, name)));
    let aliases = app.config.routing.aliases.iter().filter(|alias| key_holder.permits(&alias.name, &[]));
    let cards = cards.chain(aliases.map(|alias| alias_card(&app, alias)));
    let states: Vec<_> = app.models.absent_models().into_iter().flat_map(|models| models.states()).collect();
    let states = states.iter().map(|(name, state)| (name.as_str(), *state));
    let is_listed = |name: &str| app.models.router.get(name).is_some();
    let absent = states.filter(|(name, _)| !is_listed(name) && key_holder.permits(name, &[]));
    let cards = cards.chain(absent.map(|(name, state)| on_demand_card(&app, name, state)));
    // Anthropic's clients ask at the same place for another form.
    if headers.contains_key("anthropic-version") {
        let cards: Vec<_> = cards.collect();
        return Json(ModelPage::new(cards.iter().map(ModelCard::id))).into_response();
    }
    Json(ModelList::new(cards.collect())).into_response()
}

/// Card of one name, which may contain slashes.
pub(super) async fn card(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let key_holder = caller.key_holder();
    if let Some(model) = app.models.upstreams.find(&id) {
        let is_permitted = key_holder.permits(&id, &model.names);
        let card = || Json(upstream_card(&app, &model, &id)).into_response();
        return is_permitted.then(card).ok_or_else(|| app.not_permitted(&key_holder, &id).into());
    }
    let state = app.models.absent_models().and_then(|models| models.state(&id));
    if let Some(state) =
        state.filter(|_| key_holder.permits(&id, &[]) && app.models.router.get(&id).is_none())
    {
        return Ok(Json(on_demand_card(&app, &id, state)).into_response());
    }
    let route = app.find_model(&key_holder, Some(&id))?;
    let adapters = route.model.adapters.list();
    if let Some((name, path)) = adapters.iter().find(|(name, _)| *name == id) {
        return Ok(Json(adapter_card(&app, &route, name, path)).into_response());
    }
    Ok(Json(card_of(&app, &route, &id)).into_response())
}

fn card_of<'a>(app: &App, route: &'a Route, name: &'a str) -> ModelCard<'a> {
    let served = &route.model.served;
    let parent = (name != served.id()).then(|| served.id());
    ModelCard::new(name, &served.root, parent, app.lifecycle.started_unix_s, Some(served.max_model_len))
        .with_notice(served.notice.as_deref())
        .with_images(served.images.is_some())
        .with_state(app.models.absent_models().and_then(|models| models.state(served.id())))
}

/// Card of a model that is not in memory; its details are available only after it was loaded.
fn on_demand_card<'a>(app: &App, name: &'a str, state: &'static str) -> ModelCard<'a> {
    ModelCard::new(name, name, None, app.lifecycle.started_unix_s, None).with_state(Some(state))
}

/// Card of an alias, with the details of its first target.
fn alias_card<'a>(app: &App, alias: &'a ModelAlias) -> ModelCard<'a> {
    let root = alias.targets.first().map_or("", |target| &target.model);
    ModelCard::new(&alias.name, root, Some(root), app.lifecycle.started_unix_s, None)
}

/// Card of a model of upstream engines, without the details of their files.
fn upstream_card<'a>(app: &App, model: &'a UpstreamModel, name: &'a str) -> ModelCard<'a> {
    let parent = (name != model.id()).then(|| model.id());
    ModelCard::new(name, model.id(), parent, app.lifecycle.started_unix_s, None)
}

fn adapter_card<'a>(app: &App, route: &'a Route, name: &'a str, path: &'a str) -> ModelCard<'a> {
    let served = &route.model.served;
    ModelCard::new(name, path, Some(served.id()), app.lifecycle.started_unix_s, Some(served.max_model_len))
        .with_images(served.images.is_some())
}
