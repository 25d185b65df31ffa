//! Requests in OpenAI's form for a model of upstream engines, whose bodies and answers are passed on
//! unchanged: the engine gets parameters that are unknown here, and the client its reaction. Does not know
//! connections to engines.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use throng_api::{ApiError, Events};
use throng_fleet::upstream::{
    Endpoint, EventKind, ReportedUsage, UpstreamModel, UpstreamRequest, UpstreamStream, named_model,
    without_usage,
};
use throng_http::Exchange;
use throng_http::body::HeldBody;

use super::active_request::ActiveRequest;
use super::begin::{Begun, UpstreamJob, begin};
use super::setting::Setting;
use super::whole::note_whole;
use crate::caller::Caller;
use crate::generation::{StreamSetting, StreamSource, on_blocking_thread, stream};
use crate::rejection::{memory_full, reject};

/// Number of copies of a body in memory: the received one, and the one that is sent.
const COPIES: usize = 2;

/// Answers a request for the model.
///
/// # Errors
/// Errors of [`begin`], and 400 for an invalid body.
pub(crate) async fn pass_through(
    setting: &Setting<'_>,
    model: &UpstreamModel,
    endpoint: Endpoint,
    body: HeldBody,
    (caller, exchange): (Arc<Caller>, Arc<Exchange>),
) -> Result<Response, ApiError> {
    let n_bytes = body.bytes.len();
    let (request, memory, name) = on_blocking_thread(setting.turns, &caller, n_bytes, move |_| {
        let HeldBody { bytes, mut memory } = body;
        memory.cover(bytes.len().saturating_mul(COPIES)).map_err(memory_full)?;
        let name = named_model(&bytes).unwrap_or_default().into_owned();
        Ok((UpstreamRequest::read(endpoint, &bytes)?, memory, name))
    })
    .await?;
    let name = if name.is_empty() { model.id() } else { &name };
    let job = UpstreamJob { model, endpoint, request: &request, name, may_end_with_context: false };
    match begin(setting, &job, &caller).await? {
        Begun::Rejected(status, body) => Ok(rejected(status, body)),
        Begun::Whole(mut active, bytes) if endpoint.generates() => {
            note_whole(&mut active, &bytes);
            Ok(json(StatusCode::OK, bytes))
        }
        Begun::Whole(active, bytes) => Ok(vectors(active, bytes, request.n_prompt_tokens)),
        Begun::Stream(active, events) => {
            let UpstreamRequest { wants_usage, wants_chunk_usage, .. } = request;
            drop((request, memory));
            let source = PassedStream { active, wants_usage, wants_chunk_usage, events: Some(events) };
            let server = (setting.config, setting.phase.subscribe(), setting.memory.clone());
            Ok(stream(source, StreamSetting::new(server, caller, exchange)))
        }
    }
}

/// A stream whose events are passed on unchanged, except for usage that the client did not request.
#[derive(Debug)]
struct PassedStream {
    active: ActiveRequest,
    /// Whether the client requested the usage of the whole request.
    wants_usage: bool,
    /// Whether the client requested usage in each chunk.
    wants_chunk_usage: bool,
    /// `None` after the last event.
    events: Option<UpstreamStream>,
}

impl PassedStream {
    fn fail(&mut self, reason: &'static str) -> ApiError {
        self.active.fail_within(reason);
        ApiError::upstream_error()
    }
}

impl StreamSource for PassedStream {
    fn stream_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        let Some(events) = &mut self.events else { return Ok(false) };
        let next = events.next().await;
        let Some((event, kind)) = next.map_err(|fault| self.fail(fault.told()))? else {
            // Some engines end without saying that they have.
            if !self.active.all_ended() {
                return Err(self.fail("its stream broke off"));
            }
            out.push_done();
            self.active.end();
            return Ok(false);
        };
        // Counted before the client can see it.
        self.active.note_event(&kind, event.len());
        match kind {
            EventKind::Part { is_only_usage: true, .. } if !self.wants_usage => {}
            EventKind::Part { .. } if !self.wants_usage && !self.wants_chunk_usage => {
                out.push_bytes(&without_usage(&event).unwrap_or(event));
            }
            EventKind::Part { .. } | EventKind::Nothing => out.push_bytes(&event),
            // The engine has told the client what is wrong.
            EventKind::Error => {
                out.push_bytes(&event);
                self.active.fail();
                return Ok(false);
            }
            EventKind::Done => {
                out.push_bytes(&event);
                self.active.end();
                self.events.take().into_iter().for_each(UpstreamStream::finish);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn ping(&mut self, comment: &str, out: &mut Events) {
        out.push_comment(comment);
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        self.active.count_stream_error();
        out.push_data(&error.to_json());
    }
}

#[derive(Default, Deserialize)]
struct PooledAnswer {
    usage: Option<PooledUsage>,
}

#[derive(Deserialize)]
struct PooledUsage {
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

/// Answer without output tokens: embeddings, scores, tokens of a text.
fn vectors(mut active: ActiveRequest, bytes: Bytes, n_assumed: u64) -> Response {
    let read: PooledAnswer = serde_json::from_slice(&bytes).unwrap_or_default();
    let told = read.usage.and_then(|usage| usage.prompt_tokens.or(usage.total_tokens));
    let prompt_tokens = told.filter(|n| *n > 0).or(Some(n_assumed));
    let usage = ReportedUsage { prompt_tokens, completion_tokens: Some(0), ..ReportedUsage::default() };
    active.whole(bytes.len(), 0, Some(usage), false);
    json(StatusCode::OK, bytes)
}

/// Answer to a request that the engine rejects, with its reason if there is one.
fn rejected(status: StatusCode, reason: Bytes) -> Response {
    if reason.is_empty() { reject(ApiError::upstream_rejected()) } else { json(status, reason) }
}

fn json(status: StatusCode, body: Bytes) -> Response {
    let field = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, [field], Body::from(body)).into_response()
}
