//! Requests for model aliases: models are tried in turn until one answers, and a share of the requests is
//! copied to a shadow model. Does not know how models answer.

use std::borrow::Cow;
use std::sync::Arc;

use axum::response::Response;
use serde::Deserialize;
use throng_fleet::replica::Status;

use super::super::json_body::JsonBody;
use super::{TextEndpoint, answer_as, shadow};
use crate::aliases::{Alias, Choice};
use crate::app::App;
use crate::caller::Caller;
use crate::generate::Target;
use throng_api::ApiError;

/// Fields of a body that choose the model, parsed before the rest if there are aliases.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
}

/// Answers a request, by the models of its alias if it names one.
///
/// # Errors
/// Errors of the last model that was tried.
pub(super) async fn answer(
    app: Arc<App>,
    body: JsonBody,
    endpoint: TextEndpoint,
) -> Result<Response, ApiError> {
    let Some((alias, choice)) = choose(&app, &body.caller, body.bytes()) else {
        return answer_as(app, body, endpoint, Target::Named).await;
    };
    shadow::copy(&app, &alias, &body, endpoint);
    let (caller, name) = (body.caller.clone(), alias.config.name.as_str());
    if let Some(ticket) = choice.ticket {
        caller.judge(ticket);
    }
    if let Some(first) = choice.models.first() {
        alias.metrics.chosen(name, first);
    }
    let mut models = choice.models.into_iter().peekable();
    while let Some(model) = models.next() {
        if models.peek().is_none() {
            return answer_as(app, body, endpoint, Target::Last(model)).await;
        }
        let copy = body.copy(&app.work.memory)?;
        match answer_as(app.clone(), copy, endpoint, Target::Replaceable(model.clone())).await {
            Err(error) if is_of_the_model(&error) && !app.is_draining() => {
                let request = caller.id_text();
                tracing::warn!(
                    request,
                    alias = name,
                    model,
                    code = error.code(),
                    "a model cannot answer; the next one is asked"
                );
                alias.metrics.failed_over(name, &model);
                caller.begin_again(error.status().is_server_error());
            }
            answered => return answered,
        }
    }
    Err(ApiError::model_not_found(name))
}

/// Whether another model may answer after this error, for example because it is in a permitted region. Not
/// after a timeout, since the answer would be of no use.
fn is_of_the_model(error: &ApiError) -> bool {
    let has_failed = error.status().is_server_error() && error.code() != "generation_timeout";
    has_failed || error.code() == "region_not_permitted"
}

/// The alias that a body names, and the models for the request: those that are usable now, or else the
/// chosen one.
fn choose(app: &App, caller: &Caller, body: &[u8]) -> Option<(Arc<Alias>, Choice)> {
    if app.models.aliases.is_empty() {
        return None;
    }
    let Head { model, user } = serde_json::from_slice(body).ok()?;
    let alias = app.models.aliases.find(&model)?;
    let tenant = caller.key_holder();
    let session = caller.destination.session().or(user.as_deref());
    let point = match session {
        Some(session) => point_of(&[&alias.config.name, &tenant.id.0, session]),
        None => fastrand::u64(..),
    };
    let mut choice = alias.choose(point);
    let chosen = choice.models.first().cloned()?;
    choice.models.retain(|model| is_usable(app, model));
    if choice.models.first() != Some(&chosen)
        && let Some(ticket) = choice.ticket.take_if(|ticket| ticket.new_model().is_some())
    {
        ticket.failed();
    }
    if choice.models.is_empty() {
        choice.models.push(chosen);
    }
    Some((alias.clone(), choice))
}

/// Point of a session in the range of `u64`, equal on every gateway.
fn point_of(parts: &[&str]) -> u64 {
    let digest = throng_wire::digest(parts.join("\0").as_bytes());
    u64::from_str_radix(&digest[..16], 16).unwrap_or_default()
}

/// Whether a model would admit a request now.
pub(in crate::routes) fn is_usable(app: &App, model: &str) -> bool {
    match (app.models.router.get(model), app.models.upstreams.find(model)) {
        (Some(route), _) => route.status() == Status::Ready && route.check_room(false).is_ok(),
        (None, Some(model)) => model.dispatcher.is_ready(),
        (None, None) => false,
    }
}
