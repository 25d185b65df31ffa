//! A gateway's request from its first line to its running generation. Does not know how events are written.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, Version};
use throng_core::request::SamplingParams;
use throng_http::memory::Part;
use throng_text::grammar::GrammarError;
use throng_wire::{Constraint, Generate, VERSION_HEADER, Versions};

use super::WorkerState;
use super::generation_body::{GenerationBody, failed};
use crate::adapters::LoadedAdapter;
use crate::body_lines::{BodyLines, LinesError};
use crate::connection::RequestContext;
use crate::constraint::OutputForm;
use crate::openai::ApiError;
use crate::replica::{
    Replica, ReplicaError, ReplicaErrorKind, ReplicaRequest, RequestedAdapter, received_constraint,
    received_request,
};
use crate::retry_after::retry_after_s;

/// Most continuations of a request: more than a gateway accepts.
const MAX_CONTINUATIONS: u32 = 4096;
/// Longer requests are read on a thread for blocking work.
const MAX_READ_IN_PLACE: usize = 64 << 10;

/// `POST` of [`throng_wire::GENERATE`].
pub(super) async fn generate(
    State(worker): State<Arc<WorkerState>>,
    Extension(context): Extension<Arc<RequestContext>>,
    version: Version,
    headers: HeaderMap,
) -> Result<Body, ApiError> {
    if version < Version::HTTP_2 {
        return Err(ApiError::unsupported_http_version());
    }
    check_protocol(&headers)?;
    let mut memory = worker.memory.reservation(Part::Bodies);
    let has_room = move |n_bytes| match n_bytes {
        0 => {
            memory.give_back(usize::MAX);
            true
        }
        n_bytes => memory.cover(n_bytes).is_ok(),
    };
    let mut lines = BodyLines::new(context.stream_body(), Some(Box::new(has_room)));
    let timeout = Duration::from_secs(worker.body_timeout_s);
    let line = tokio::time::timeout(timeout, lines.next()).await.map_err(|_| ApiError::request_timeout())?;
    let line = line.map_err(refused_line)?.ok_or_else(ApiError::incomplete_body)?;
    let mut memory = worker.memory.reservation(Part::Prompts);
    memory.set(line.len())?;
    let request = if line.len() > MAX_READ_IN_PLACE {
        on_blocking_thread(move || read(&line)).await?
    } else {
        read(&line)
    }?;
    Ok(match begin(&worker, request).await {
        Ok((generation, adapter)) => {
            Body::from_stream(GenerationBody::new(generation, lines, (adapter, memory)))
        }
        Err(error) => Body::from(failed(error)),
    })
}

/// Whether the request is written in a version of the protocol that is spoken here.
fn check_protocol(headers: &HeaderMap) -> Result<(), ApiError> {
    let sent = headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if sent.is_some_and(|version| Versions::OWN.contains(version)) {
        return Ok(());
    }
    let Versions { oldest, newest } = Versions::OWN;
    Err(ApiError::malformed_request(&format!("The protocol's version must be {oldest} to {newest}")))
}

fn refused_line(error: LinesError) -> ApiError {
    match error {
        LinesError::Broken => ApiError::incomplete_body(),
        LinesError::TooLong => ApiError::request_too_large(throng_wire::MAX_LINE_BYTES),
        LinesError::NoMemory => {
            ApiError::overloaded("The worker's memory for requests is in use.", retry_after_s())
        }
    }
}

fn read(line: &[u8]) -> Result<Generate, ApiError> {
    let request: Generate = serde_json::from_slice(line)
        .map_err(|error| ApiError::malformed_request(&format!("The request cannot be read: {error}")))?;
    let resumed = request.resumed.iter().map(|resumed| resumed.index);
    let is_ascending = request.resumed.is_sorted_by(|a, b| a.index < b.index);
    if request.n > MAX_CONTINUATIONS || !is_ascending || resumed.max() >= Some(MAX_CONTINUATIONS) {
        return Err(ApiError::malformed_request("The continuations are too many or not in order"));
    }
    check_sampling(&request.sampling)?;
    if !is_closed(request.constraint.as_ref()) {
        return Err(ApiError::malformed_request(
            "Reasoning without an end has nothing after it to constrain",
        ));
    }
    Ok(request)
}

/// Refuses numbers that no gateway sends: sampling sorts and divides by them, and makes room for as many
/// beams.
fn check_sampling(sampling: &SamplingParams) -> Result<(), ApiError> {
    let SamplingParams {
        temperature,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        beams,
        ..
    } = sampling;
    let numbers = [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty];
    let are_numbers = numbers.into_iter().all(|number| number.is_finite())
        && logit_bias.iter().all(|(_, bias)| !bias.is_nan());
    let is_search = beams.is_none_or(|beams| {
        (1..=MAX_CONTINUATIONS).contains(&beams.width) && beams.length_penalty.is_finite()
    });
    if are_numbers && is_search && *repetition_penalty > 0.0 {
        return Ok(());
    }
    Err(ApiError::malformed_request("The sampling parameters are out of range"))
}

/// Whether the reasoning before a constrained answer has an end by which the answer is found.
fn is_closed(constraint: Option<&Constraint>) -> bool {
    let reasoning = constraint.and_then(|constraint| constraint.reasoning.as_ref());
    reasoning.is_none_or(|reasoning| !reasoning.close.is_empty())
}

async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal_error("?"))
}

type Begun = (Box<dyn crate::replica::Generation>, Option<LoadedAdapter>);

/// Submits a request to the engine.
async fn begin(worker: &Arc<WorkerState>, mut request: Generate) -> Result<Begun, ReplicaError> {
    if worker.is_draining() {
        return Err(WorkerState::draining());
    }
    worker.replica.check_room()?;
    let (constraint, adapter) = (request.constraint.take(), request.adapter.take());
    let mut request = received_request(request);
    let mut loaded = None;
    if constraint.is_some() || adapter.is_some() {
        let prepared = prepare(worker, &request, constraint, adapter).await?;
        (request.constraint, loaded) = prepared;
        request.adapter = loaded.as_ref().map(|adapter: &LoadedAdapter| RequestedAdapter {
            adapter: adapter.adapter,
            name: Arc::from(""),
        });
    }
    let generation = worker.replica.generate(request).await?;
    Ok((generation, loaded))
}

/// Compiles the constraint and loads the adapter, apart from the threads that others wait for.
async fn prepare(
    worker: &Arc<WorkerState>,
    request: &ReplicaRequest,
    constraint: Option<Constraint>,
    adapter: Option<String>,
) -> Result<(Option<OutputForm>, Option<LoadedAdapter>), ReplicaError> {
    let n = request.n_continuations();
    let n = request.sampling.beams.map_or(n, |beams| beams.width).max(n);
    let permit = worker.preparing.acquire().await;
    let owned = worker.clone();
    let work = move || {
        let form = constraint.map(|constraint| compile(&owned, constraint, n)).transpose()?.flatten();
        let adapter = adapter.map(|name| load(&owned, &name)).transpose()?;
        Ok((form, adapter))
    };
    let prepared = tokio::task::spawn_blocking(work).await;
    drop(permit);
    prepared.unwrap_or_else(|_| Err(failure("preparing the request panicked".into(), false)))
}

fn compile(worker: &WorkerState, constraint: Constraint, n: u32) -> Result<Option<OutputForm>, ReplicaError> {
    let grammars =
        worker.grammars.as_ref().ok_or_else(|| failure("the model has no tokenizer".into(), false))?;
    let source = received_constraint(constraint, &worker.answer_format)
        .ok_or_else(|| failure("the format of tool calls is not known here".into(), false))?;
    let compiled = source.compile(grammars, &worker.description.eos_token_ids, n);
    let compiled = compiled.map_err(|error| ReplicaError {
        kind: match error {
            GrammarError::TooComplex(_) => ReplicaErrorKind::ConstraintTooComplex,
            _ => ReplicaErrorKind::Failed,
        },
        retryable: false,
        message: error.to_string(),
    })?;
    Ok(compiled.map(|compiled| OutputForm { compiled, source: None }))
}

/// Another worker may have an adapter that this one lacks, or room for it.
fn load(worker: &WorkerState, name: &str) -> Result<LoadedAdapter, ReplicaError> {
    match worker.adapters.lease(name) {
        Ok(Some(adapter)) => Ok(adapter),
        Ok(None) => Err(failure(format!("there is no adapter {name:?}"), true)),
        Err(error) => Err(failure(error.message().to_owned(), true)),
    }
}

fn failure(message: String, retryable: bool) -> ReplicaError {
    ReplicaError { kind: ReplicaErrorKind::Failed, retryable, message }
}
