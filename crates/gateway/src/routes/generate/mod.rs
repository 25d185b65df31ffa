//! Endpoints for generated text: from a body to an answer, whole or streamed.

mod alias;
mod golden;
mod headers;
mod shadow;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderName, HeaderValue, header};
use throng_fleet::upstream::{Endpoint, named_model};
use throng_http::Exchange;

pub(super) use self::alias::is_usable;
pub(super) use self::golden::watch as watch_golden;
use self::headers::{SERVER_TIMING, header_value, timing, with_cache_use};
use super::json_body::{AppState, JsonBody, Received, with_ignored};
use super::ollama::load_only;
use crate::app::App;
use crate::caller::Caller;
use crate::generate::{StartedRequest, Target, UnreadRequest, generate};
use crate::generation::{AnswerRecorder, FrameWriter, StreamSetting, stream};
use crate::rejection::Rejection;
use crate::turns::{Turn, answer_in_background};
use crate::upstream;
use throng_api::anthropic::Messages;
use throng_api::llama_cpp::InfillEndpoint;
use throng_api::ollama;
use throng_api::openai::{ChatCompletions, Completions};
use throng_api::responses::{Compact, Responses};
use throng_api::{ApiError, Dialect, ReadOptions, Request};

const JSON: [(HeaderName, HeaderValue); 1] =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// An endpoint for generated text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextEndpoint {
    /// Parser of requests and writer of answers.
    dialect: &'static dyn Dialect,
    /// The corresponding endpoint of upstream engines, to which bodies are passed unchanged. Without it,
    /// requests for their models are parsed here and written anew.
    upstream: Option<Endpoint>,
    /// Parser of requests that continue kept conversations, if the API supports them.
    read_turn: Option<ReadTurn>,
    /// Whether a request without a name is for the only model.
    takes_only_model: bool,
}

/// Parser of a request that is a turn of a kept conversation.
type ReadTurn = fn(&Turn, &[u8], &ReadOptions) -> Result<Request, ApiError>;

impl TextEndpoint {
    const fn new(dialect: &'static dyn Dialect, upstream: Option<Endpoint>) -> Self {
        Self { dialect, upstream, read_turn: None, takes_only_model: false }
    }
}

/// OpenAI's chat completions.
const CHAT: TextEndpoint = TextEndpoint::new(&ChatCompletions, Some(Endpoint::Chat));
/// OpenAI's text completions.
const COMPLETIONS: TextEndpoint = TextEndpoint::new(&Completions, Some(Endpoint::Completions));

/// Endpoint of llama.cpp's infill.
const INFILL: TextEndpoint =
    TextEndpoint { takes_only_model: true, ..TextEndpoint::new(&InfillEndpoint, None) };
/// Endpoint of Ollama's chats.
const OLLAMA_CHAT: TextEndpoint = TextEndpoint::new(&ollama::Chat, None);
/// Endpoint of Ollama's completions.
const OLLAMA_GENERATE: TextEndpoint = TextEndpoint::new(&ollama::Generate, None);
/// Endpoint of Anthropic's Messages.
const MESSAGES: TextEndpoint = TextEndpoint::new(&Messages, None);

/// Endpoint of OpenAI's Responses.
const RESPONSES: TextEndpoint =
    TextEndpoint { read_turn: Some(Turn::parse), ..TextEndpoint::new(&Responses, None) };
/// OpenAI's compaction of conversations.
const COMPACT: TextEndpoint =
    TextEndpoint { read_turn: Some(Turn::parse_compaction), ..TextEndpoint::new(&Compact, None) };

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

/// `POST /v1/responses`.
pub(super) async fn responses(State(app): AppState, mut body: JsonBody) -> Result<Response, Rejection> {
    body.gather_turn(&app).await?;
    answer_with_tools(app, body).await
}

/// `POST /v1/responses`, for a line of a batch.
pub(super) async fn response_of_batch(
    State(app): AppState,
    mut body: JsonBody,
) -> Result<Response, Rejection> {
    body.gather_turn(&app).await?;
    if body.turn().is_some_and(|turn| turn.is_background()) {
        let reason = "Lines of batches are answered without their client anyway.";
        return Err(ApiError::unsupported_parameter("background", reason).into());
    }
    answer_with_tools(app, body).await
}

/// Answers a request whose tools the gateway may call.
async fn answer_with_tools(app: Arc<App>, body: JsonBody) -> Result<Response, Rejection> {
    let body = body.with_tools(&app);
    answer_once(app, body, RESPONSES).await.map_err(Rejection::from)
}

/// Answers a message of a connection by events, each a line.
///
/// # Errors
/// The errors of `POST /v1/responses`.
pub(super) async fn answer_message(app: Arc<App>, message: JsonBody) -> Result<Response, ApiError> {
    check_permission(&app, &message)?;
    let message = message.with_tools(&app);
    alias::answer(app, message, RESPONSES).await
}

/// `POST /v1/responses/compact`.
pub(super) async fn compact(State(app): AppState, mut body: JsonBody) -> Result<Response, Rejection> {
    body.gather_turn(&app).await?;
    answer_once(app, body, COMPACT).await.map_err(Rejection::from)
}

/// Answers a request; one with an `Idempotency-Key` is generated only once.
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

/// Refuses a model that the key does not permit, before kept answers are looked up and copies are made.
fn check_permission(app: &App, body: &JsonBody) -> Result<(), ApiError> {
    let key_holder = body.caller.key_holder();
    if !key_holder.is_restricted() {
        return Ok(());
    }
    app.check_permission(&key_holder, named_model(body.bytes()).as_deref(), body.is_repeatable())
}

/// Answers a request with one model.
async fn answer_as(
    app: Arc<App>,
    body: JsonBody,
    endpoint: TextEndpoint,
    target: Target,
) -> Result<Response, ApiError> {
    body.caller.set_replaceable(matches!(target, Target::Replaceable(_)));
    let _presence = match target.model() {
        None if endpoint.takes_only_model => body.bring_named_or_only(&app).await?,
        named => body.bring_model(&app, named).await?,
    };
    if let Some(there) = endpoint.upstream
        && let Some(model) = app.models.upstreams.asked_for(target.model(), body.bytes())
    {
        let Received { body, caller, exchange } = body.into_received();
        let setting = app.upstream_setting()?;
        return upstream::pass_through(&setting, &model, there, body, (caller, exchange)).await;
    }
    let (caller, exchange, n_bytes) = (body.caller.clone(), body.exchange.clone(), body.n_bytes());
    let (turn, tools) = (body.turn().cloned(), body.tools(&app, target.model()).await?);
    let model = target.model().map(str::to_owned);
    let of_tools = tools.clone();
    let read = move || {
        let turn = body.turn().cloned().zip(endpoint.read_turn);
        body.read(|bytes, options| match (of_tools, turn) {
            (Some(tools), turn) => {
                let read = tools.request()?;
                Ok(match turn {
                    Some((turn, _)) => turn.keep_input(read),
                    None => read.0,
                })
            }
            (None, Some((turn, read))) => read(&turn, bytes, options),
            (None, None) => endpoint.dialect.parse(bytes, options),
        })
    };
    let started = match tools {
        None => generate(&app, &caller, target, UnreadRequest { n_bytes, read }).await?,
        Some(tools) => match tools.failure() {
            Some(error) => StartedRequest::failed(&app, read().map_err(|_| error.clone())?, error.clone()),
            None => {
                let started = generate(&app, &caller, target, UnreadRequest { n_bytes, read }).await?;
                tools.follow(&app, caller.clone(), model, started)
            }
        },
    };
    match turn {
        Some(turn) if turn.is_background() => answer_without_client(&app, caller, started, turn).await,
        turn if started.is_streaming => Ok(answer_by_stream(&app, caller, exchange, started, turn)),
        turn => answer_whole(&app, &caller, started, turn).await,
    }
}

/// Answers without the client, which gets the initial response, or its events as they are stored.
async fn answer_without_client(
    app: &Arc<App>,
    caller: Arc<Caller>,
    mut started: StartedRequest,
    turn: Arc<Turn>,
) -> Result<Response, ApiError> {
    let (is_streaming, ignored) = (started.is_streaming, std::mem::take(&mut started.ignored));
    let json = answer_in_background(app, caller, started, turn.clone()).await?;
    if is_streaming {
        return Ok(with_ignored(app, turn.tail(app).await?, &ignored));
    }
    Ok(with_ignored(app, (JSON, Body::from(json)), &ignored))
}

/// Answers with a stream.
fn answer_by_stream(
    app: &App,
    caller: Arc<Caller>,
    exchange: Arc<Exchange>,
    mut started: StartedRequest,
    turn: Option<Arc<Turn>>,
) -> Response {
    let cache_use = started.stream.source().cache_use();
    let timing = [(SERVER_TIMING, header_value(caller.stages.server_timing()))];
    let ignored = std::mem::take(&mut started.ignored);
    let server = (&app.config, app.lifecycle.phase.subscribe(), app.work.memory.clone());
    let setting = StreamSetting::new(server, caller, exchange)
        .recorded_by(turn.map(|turn| turn as Arc<dyn AnswerRecorder>));
    let response = with_ignored(app, (timing, stream(started.into_stream(), setting)), &ignored);
    with_cache_use(response, cache_use)
}

/// Answers with a complete body.
async fn answer_whole(
    app: &App,
    caller: &Caller,
    mut started: StartedRequest,
    turn: Option<Arc<Turn>>,
) -> Result<Response, ApiError> {
    let cache_use = started.stream.source().cache_use();
    let ignored = std::mem::take(&mut started.ignored);
    let (collected, writer) = started.collect(app).await?;
    let (timing, n_bytes) = (timing(&collected.answer, caller), collected.json_bytes);
    let write = move |frames: FrameWriter| frames.fill(|out| writer.whole(&collected.answer, out));
    let frames = app.work.writing.write(caller, n_bytes, write).await?;
    if let Some(turn) = turn {
        turn.keep().await?;
    }
    Ok(with_cache_use(with_ignored(app, (timing, JSON, Body::new(frames)), &ignored), cache_use))
}
