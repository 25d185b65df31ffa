//! Endpoints for generated text: from a body to an answer, whole or streamed.

mod alias;
mod golden;
mod headers;
mod shadow;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderName, HeaderValue, header};
use throng_fleet::upstream::{Endpoint, named_model};
use throng_http::Exchange;

pub(super) use self::alias::is_usable;
pub(super) use self::golden::watch as watch_golden;
use self::headers::{SERVER_TIMING, header_value, timing, with_cache_use};
use super::by_engine::upstream_setting;
use super::json_body::{AppState, JsonBody, Received, with_ignored};
use super::ollama::load_only;
use crate::app::App;
use crate::caller::Caller;
use crate::generate::{StartedRequest, Target, UnreadRequest, generate};
use crate::generation::{FrameWriter, StreamSetting, stream};
use crate::rejection::Rejection;
use crate::upstream;
use throng_api::anthropic::Messages;
use throng_api::llama_cpp::InfillEndpoint;
use throng_api::ollama;
use throng_api::openai::{ChatCompletions, Completions};
use throng_api::{ApiError, Dialect};

const JSON: [(HeaderName, HeaderValue); 1] =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// An endpoint for generated text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextEndpoint {
    /// Reads requests and writes answers.
    dialect: &'static dyn Dialect,
    /// The same endpoint of upstream engines, where they have one.
    upstream: Option<Endpoint>,
}

/// OpenAI's chat completions.
const CHAT: TextEndpoint = TextEndpoint { dialect: &ChatCompletions, upstream: Some(Endpoint::Chat) };
/// OpenAI's text completions.
const COMPLETIONS: TextEndpoint =
    TextEndpoint { dialect: &Completions, upstream: Some(Endpoint::Completions) };

/// llama.cpp's filling in the middle.
const INFILL: TextEndpoint = TextEndpoint { dialect: &InfillEndpoint, upstream: None };
/// Ollama's chats.
const OLLAMA_CHAT: TextEndpoint = TextEndpoint { dialect: &ollama::Chat, upstream: None };
/// Ollama's generate.
const OLLAMA_GENERATE: TextEndpoint = TextEndpoint { dialect: &ollama::Generate, upstream: None };
/// Anthropic's messages.
const MESSAGES: TextEndpoint = TextEndpoint { dialect: &Messages, upstream: None };

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, CHAT).await.map_err(Rejection::from)
}

/// `POST /v1/completions`.
pub(super) async fn completions(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, COMPLETIONS).await.map_err(Rejection::from)
}

/// `POST /infill`.
pub(super) async fn infill(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, INFILL).await.map_err(Rejection::from)
}

/// `POST /api/chat`.
pub(super) async fn ollama_chat(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    if let Some(answer) = load_only(&app, &body, true).await? {
        return Ok(answer);
    }
    answer_once(app, body, OLLAMA_CHAT).await.map_err(Rejection::from)
}

/// `POST /api/generate`.
pub(super) async fn ollama_generate(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    if let Some(answer) = load_only(&app, &body, false).await? {
        return Ok(answer);
    }
    answer_once(app, body, OLLAMA_GENERATE).await.map_err(Rejection::from)
}

/// `POST /v1/messages`.
pub(super) async fn messages(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, MESSAGES).await.map_err(Rejection::from)
}

/// Answers a request; one with an `Idempotency-Key` is generated once, however often it comes.
async fn answer_once(
    app: Arc<App>,
    mut body: JsonBody,
    endpoint: TextEndpoint,
) -> Result<Response, ApiError> {
    check_permission(&app, &body)?;
    match body.take_repeatable() {
        // On the heap: held in several places of the same future, it would make every request's twice as large.
        Some(request) => {
            let answer = Box::pin(alias::answer(app.clone(), body, endpoint));
            request.answer(&app, answer).await
        }
        None => alias::answer(app, body, endpoint).await,
    }
}

/// Refuses a model that the key does not permit before answers that were kept are looked at, and before
/// copies are made of the request.
fn check_permission(app: &App, body: &JsonBody) -> Result<(), ApiError> {
    let key_holder = body.caller.key_holder();
    if !key_holder.is_restricted() {
        return Ok(());
    }
    app.check_permission(&key_holder, named_model(body.bytes()).as_deref(), body.is_repeatable())
}

/// Answers a request by one model.
async fn answer_as(
    app: Arc<App>,
    body: JsonBody,
    endpoint: TextEndpoint,
    target: Target,
) -> Result<Response, ApiError> {
    body.caller.set_replaceable(matches!(target, Target::Replaceable(_)));
    body.bring_model(&app, target.model()).await?;
    if let Some(model) = app.models.upstreams.asked_for(target.model(), body.bytes()) {
        let endpoint_there = endpoint.upstream.ok_or_else(|| {
            let reason = "Models of upstream engines have no such API here; use /v1/chat/completions.";
            ApiError::unsupported_by_model("model", reason)
        })?;
        let Received { body, caller, exchange } = body.into_received();
        return upstream::answer(&upstream_setting(&app, exchange)?, &model, endpoint_there, body, caller)
            .await;
    }
    let (caller, exchange, n_bytes) = (body.caller.clone(), body.exchange.clone(), body.n_bytes());
    let read = move || body.read(|bytes, options| endpoint.dialect.parse(bytes, options));
    let started = generate(&app, &caller, target, UnreadRequest { n_bytes, read }).await?;
    if started.is_streaming {
        Ok(answer_by_stream(&app, caller, exchange, started))
    } else {
        answer_whole(&app, &caller, started).await
    }
}

/// Answers token by token.
fn answer_by_stream(
    app: &App,
    caller: Arc<Caller>,
    exchange: Arc<Exchange>,
    mut started: StartedRequest,
) -> Response {
    let cache_use = started.stream.session().cache_use();
    let timing = [(SERVER_TIMING, header_value(caller.stages.server_timing()))];
    let ignored = std::mem::take(&mut started.ignored);
    let (route, answer, writer) = started.into_stream();
    let setting = StreamSetting {
        caller,
        exchange,
        route,
        phase: app.lifecycle.phase.subscribe(),
        ping_interval: Duration::from_secs(app.config.api.ping_interval_s.max(1)),
        slow_reader_timeout: Duration::from_secs(app.config.server.slow_reader_timeout_s),
        memory: app.work.memory.clone(),
    };
    let response = with_ignored(app, (timing, stream(answer, writer, setting)), &ignored);
    with_cache_use(response, cache_use)
}

/// Answers at once.
async fn answer_whole(app: &App, caller: &Caller, mut started: StartedRequest) -> Result<Response, ApiError> {
    let cache_use = started.stream.session().cache_use();
    let ignored = std::mem::take(&mut started.ignored);
    let (collected, writer) = started.collect(app).await?;
    let (timing, n_bytes) = (timing(&collected.answer, caller), collected.json_bytes);
    let write = move |frames: FrameWriter| frames.fill(|out| writer.whole(&collected.answer, out));
    let frames = app.work.writing.write(caller, n_bytes, write).await?;
    Ok(with_cache_use(with_ignored(app, (timing, JSON, Body::new(frames)), &ignored), cache_use))
}
