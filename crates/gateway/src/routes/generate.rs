//! Chat and text completions: from a body to an answer, whole or streamed. Refuses to know what stands in either.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, header};
use throng_core::request::TokenId;

use super::json_body::{AppState, JsonBody, with_ignored};
use crate::answer::{Asked, ChatFormat, CompletionFormat, EchoedPrompt, chat_completion, text_completion};
use crate::app::App;
use crate::generation::{
    Answer, Prepared, StreamSetting, admit, collect, off_the_workers, prepare_chat, prepare_completion,
    retry_after_s, stream,
};
use crate::openai::response::{chat_id, completion_id};
use crate::openai::{ApiError, ChatRequest, CompletionRequest};
use crate::router::Route;
use crate::server::RequestContext;

const JSON: [(HeaderName, HeaderValue); 1] =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(app): AppState, body: JsonBody) -> Result<Response, ApiError> {
    let request = Arc::new(ChatRequest::parse(&body.bytes, &body.options)?);
    let (context, generation) = (body.context, &request.generation);
    let route = welcome(&app, generation.model())?;
    let prepared = {
        let (model, tenant, request) = (route.model.clone(), context.tenant(), request.clone());
        off_the_workers(&app, context.id_text(), move || prepare_chat(&model, tenant, &request)).await?
    };
    let prompts = prompts_of(&prepared);
    let asked = Asked::new(
        chat_id(generation.request_id.as_deref()),
        generation,
        route.model.served.tokenizer.clone(),
        prompts,
    );
    let session = admit(&route, prepared, "messages")?;
    let response = if generation.is_streaming() {
        stream(session, ChatFormat::new(asked), stream_setting(&app, &route, context))
    } else {
        let answer = collect(session, 1, app.phase.subscribe(), context.id_text()).await?;
        let timing = timing(&answer);
        (timing, JSON, chat_completion(&asked, &answer)).into_response()
    };
    Ok(with_ignored(response, &generation.ignored))
}

/// `POST /v1/completions`.
pub(super) async fn completions(State(app): AppState, body: JsonBody) -> Result<Response, ApiError> {
    let request = Arc::new(CompletionRequest::parse(&body.bytes, &body.options)?);
    let (context, generation) = (body.context, &request.generation);
    let route = welcome(&app, generation.model())?;
    if request.prompts.len() * generation.n() as usize > app.config.api.max_choices {
        return Err(ApiError::array_above_max_length("prompt", app.config.api.max_choices));
    }
    let mut prepared = {
        let (model, tenant, request) = (route.model.clone(), context.tenant(), request.clone());
        off_the_workers(&app, context.id_text(), move || prepare_completion(&model, tenant, &request)).await?
    };
    let echo = EchoedPrompt { texts: prepared.echo.take(), shows_logprobs: request.returns_prompt_logprobs };
    let prompts = prompts_of(&prepared);
    let n_prompts = prompts.len();
    let asked = Asked::new(
        completion_id(generation.request_id.as_deref()),
        generation,
        route.model.served.tokenizer.clone(),
        prompts,
    );
    let session = admit(&route, prepared, "prompt")?;
    let response = if generation.is_streaming() {
        stream(session, CompletionFormat::new(asked, echo), stream_setting(&app, &route, context))
    } else {
        let answer = collect(session, n_prompts, app.phase.subscribe(), context.id_text()).await?;
        let timing = timing(&answer);
        (timing, JSON, text_completion(&asked, &echo, &answer)).into_response()
    };
    Ok(with_ignored(response, &generation.ignored))
}

/// The model, if new requests are welcome.
fn welcome(app: &App, model: &str) -> Result<Route, ApiError> {
    let route = app.router.find(model)?;
    if app.is_draining() {
        return Err(ApiError::shutting_down(retry_after_s()));
    }
    Ok(route.clone())
}

fn prompts_of(prepared: &Prepared) -> Vec<Arc<[TokenId]>> {
    prepared.requests.iter().map(|request| request.prompt.clone()).collect()
}

fn stream_setting(app: &App, route: &Route, context: Arc<RequestContext>) -> StreamSetting {
    StreamSetting {
        context,
        model: route.model.clone(),
        phase: app.phase.subscribe(),
        ping_interval: Duration::from_secs(app.config.api.ping_interval_s.max(1)),
        slow_reader_timeout: Duration::from_secs(app.config.server.slow_reader_timeout_s),
    }
}

/// Where the time went before the first token of the first choice, as headers.
fn timing(answer: &Answer) -> [(HeaderName, HeaderValue); 2] {
    let timeline = answer.choices.first().and_then(|choice| choice.end.as_ref()).map(|end| end.timeline);
    let ms = |time: Option<throng_core::time::Nanos>| time.map_or(0.0, throng_core::time::Nanos::as_ms_f64);
    let queue = ms(timeline.and_then(|t| t.queued()));
    let prefill = ms(timeline.and_then(|t| t.prefill()));
    let value = |text: String| HeaderValue::try_from(text).expect("digits and letters are a header value");
    [
        (
            HeaderName::from_static("server-timing"),
            value(format!("queue;dur={queue:.1}, prefill;dur={prefill:.1}")),
        ),
        (HeaderName::from_static("x-queue-ms"), value(format!("{queue:.1}"))),
    ]
}
