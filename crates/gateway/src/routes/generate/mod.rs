//! Chat and text completions: from a body to an answer, whole or streamed. Does not know what stands in either.

mod alias;
mod golden;
mod headers;
mod job;
mod question;
mod shadow;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderName, HeaderValue, header};
use throng_http::Phase;
use throng_http::memory::{Part, Reservation};

pub(super) use self::alias::is_usable;
pub(super) use self::golden::watch as watch_golden;
use self::headers::{SERVER_TIMING, header_value, timing, with_cache_use};
use self::job::{Job, is_quick_chat, is_quick_completion, prepare_chat_job, prepare_completion_job};
use super::by_engine::foreign_setting;
use super::json_body::{AppState, JsonBody, with_ignored};
use crate::answer::{Asked, ChatFormat, CompletionFormat, EchoedPrompt, chat_completion, text_completion};
use crate::app::App;
use crate::connection::RequestContext;
use crate::foreign::{self, Endpoint, named_model};
use crate::generation::{
    Answer, AnswerBound, FrameWriter, Frames, Session, StreamFormat, StreamSetting, admit, collect,
    read_and_prepare, stream,
};
use crate::rejection::{Rejection, memory_full};
use crate::retry_after::retry_after_s;
use crate::router::Route;
use throng_api::openai::{ChatRequest, CompletionRequest};
use throng_api::{ApiError, IgnoredParameters};

const JSON: [(HeaderName, HeaderValue); 1] =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// Which model answers a request.
enum Target {
    /// The one that its body names.
    Named,
    /// This one, and no other should it fail.
    Last(String),
    /// This one; should it fail before its first token, another one is asked.
    Replaceable(String),
}

impl Target {
    fn model(&self) -> Option<&str> {
        match self {
            Self::Named => None,
            Self::Last(model) | Self::Replaceable(model) => Some(model),
        }
    }
}

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, Endpoint::Chat).await.map_err(Rejection::from)
}

/// `POST /v1/completions`.
pub(super) async fn completions(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer_once(app, body, Endpoint::Completions).await.map_err(Rejection::from)
}

/// Answers a request; one with an `Idempotency-Key` is generated once, however often it comes.
async fn answer_once(app: Arc<App>, mut body: JsonBody, endpoint: Endpoint) -> Result<Response, ApiError> {
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
    let caller = body.context.key_holder();
    if !caller.is_restricted() {
        return Ok(());
    }
    app.check_permission(&caller, named_model(body.bytes()).as_deref(), body.is_repeatable())
}

/// Answers a request by one model.
async fn answer_as(
    app: Arc<App>,
    body: JsonBody,
    endpoint: Endpoint,
    target: Target,
) -> Result<Response, ApiError> {
    body.context.set_replaceable(matches!(target, Target::Replaceable(_)));
    body.bring_model(&app, target.model()).await?;
    if let Some(model) = app.foreign.asked_for(target.model(), body.bytes()) {
        let (body, context) = body.into_parts();
        return foreign::answer(&foreign_setting(&app)?, model, endpoint, body, context).await;
    }
    match endpoint {
        Endpoint::Chat => answer_chat(app, body, target).await,
        _ => answer_completion(app, body, target).await,
    }
}

async fn answer_chat(app: Arc<App>, body: JsonBody, target: Target) -> Result<Response, ApiError> {
    let (context, n_bytes) = (body.context.clone(), body.n_bytes());
    let (state, of_request) = (app.clone(), context.clone());
    let read = move || body.read(ChatRequest::parse);
    let is_quick = |(request, _): &(ChatRequest, _)| is_quick_chat(&app, request);
    let job = read_and_prepare(
        &app.turns,
        &context,
        n_bytes,
        read,
        is_quick,
        move |(request, _memory), abandoned| {
            prepare_chat_job(&state, &of_request, request, &target, abandoned)
        },
    )
    .await?;
    let begun = begin(&app, &context, job, "messages").await?;
    if begun.is_streaming {
        let format = ChatFormat::new(begun.asked);
        return Ok(begun.running.stream(&app, format));
    }
    let Begun { asked, running, .. } = begun;
    running.answer(&app, move |answer, out| chat_completion(&asked, answer, out)).await
}

async fn answer_completion(app: Arc<App>, body: JsonBody, target: Target) -> Result<Response, ApiError> {
    let (context, n_bytes) = (body.context.clone(), body.n_bytes());
    let (state, of_request) = (app.clone(), context.clone());
    let read = move || body.read(CompletionRequest::parse);
    let is_quick = |(request, _): &(CompletionRequest, _)| is_quick_completion(request);
    let job = read_and_prepare(
        &app.turns,
        &context,
        n_bytes,
        read,
        is_quick,
        move |(request, _memory), abandoned| {
            prepare_completion_job(&state, &of_request, request, &target, abandoned)
        },
    )
    .await?;
    let begun = begin(&app, &context, job, "prompt").await?;
    if begun.is_streaming {
        let format = CompletionFormat::new(begun.asked, begun.echo);
        return Ok(begun.running.stream(&app, format));
    }
    let Begun { asked, echo, running, .. } = begun;
    running.answer(&app, move |answer, out| text_completion(&asked, &echo, answer, out)).await
}

/// A request that runs, and how its answer is to be shown.
struct Begun {
    asked: Asked,
    echo: EchoedPrompt,
    is_streaming: bool,
    running: Running,
}

/// A request that runs.
struct Running {
    route: Route,
    context: Arc<RequestContext>,
    session: Session,
    n_prompts: usize,
    /// Choices that are shown of each prompt.
    n_shown: usize,
    bound: AnswerBound,
    memory: Reservation,
    ignored: IgnoredParameters,
}

async fn begin(
    app: &App,
    context: &Arc<RequestContext>,
    job: Job,
    prompt_param: &'static str,
) -> Result<Begun, ApiError> {
    let Job { route, prepared, asked, echo, bound, is_streaming, ignored, unjudged, is_replaceable } = job;
    app.moderation.judge_prompts(&unjudged, prompt_param).await?;
    let memory = app.memory.reserve(Part::Answers, bound.prompt_report_bytes()).map_err(memory_full)?;
    let n_prompts = prepared.requests.len();
    let counting = (&app.limits, app.ledger.as_ref());
    let mut session =
        admit(&route, prepared, prompt_param, context, counting, (&app.cache, &app.moderation)).await?;
    if is_replaceable && is_streaming {
        // Once the head of a stream has been sent, no other model can answer.
        let mut phase = app.phase.subscribe();
        let begun = tokio::select! {
            begun = session.begun() => begun,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => Ok(()),
        };
        begun.map_err(|error| session.client_error(&error, context.id_text()))?;
    }
    let context = context.clone();
    let n_shown = asked.n();
    let running = Running { route, context, session, n_prompts, n_shown, bound, memory, ignored };
    Ok(Begun { asked, echo, is_streaming, running })
}

impl Running {
    /// Answers token by token.
    fn stream(mut self, app: &App, format: impl StreamFormat) -> Response {
        self.session.keep(self.memory);
        let setting = StreamSetting {
            context: self.context,
            route: self.route,
            phase: app.phase.subscribe(),
            ping_interval: Duration::from_secs(app.config.api.ping_interval_s.max(1)),
            slow_reader_timeout: Duration::from_secs(app.config.server.slow_reader_timeout_s),
            memory: app.memory.clone(),
        };
        let cache_use = self.session.cache_use();
        let timing = [(SERVER_TIMING, header_value(setting.context.stages.server_timing()))];
        let response = with_ignored(app, (timing, stream(self.session, format, setting)), &self.ignored);
        with_cache_use(response, cache_use)
    }

    /// Answers at once.
    async fn answer(
        self,
        app: &App,
        write: impl FnOnce(&Answer, FrameWriter) -> Result<Frames, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Self { context, session, n_prompts, n_shown, bound, memory, ignored, .. } = self;
        let (phase, cache_use) = (app.phase.subscribe(), session.cache_use());
        let mut answer = collect(session, n_prompts, &bound, memory, phase, context.id_text()).await?;
        answer.keep_best(n_shown);
        let timing = timing(&answer, &context);
        let n_bytes = answer.json_bytes;
        let frames = app.writing.write(&context, n_bytes, move |out| write(&answer, out)).await?;
        Ok(with_cache_use(with_ignored(app, (timing, JSON, Body::new(frames)), &ignored), cache_use))
    }
}

/// The model, if the key permits it and new requests are welcome.
fn welcome(app: &App, context: &RequestContext, model: &str) -> Result<Route, ApiError> {
    let caller = context.key_holder();
    let route = app.find_model(&caller, Some(model))?;
    if app.is_draining() {
        return Err(ApiError::shutting_down(retry_after_s()));
    }
    if route.model.served.pooling.is_some() {
        let reason = "This model gives vectors, not text; use /v1/embeddings, /v1/rerank or /v1/classify.";
        return Err(ApiError::unsupported_by_model("model", reason));
    }
    Ok(route)
}
