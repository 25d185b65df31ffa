//! Submits a request to engines: attempts at one engine after the other, until one answers. Nothing has
//! reached the client before that. Does not know the form of answers to clients.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use throng_core::fleet::{Attempts, Retry};
use throng_core::request::TenantId;
use throng_http::awake::within;

use super::connection::{MAX_ERROR_BYTES, Upstream, read_all};
use super::events::{EventKind, EventSplitter, classify, data_of};
use super::fault::Fault;
use super::forwarding::Forwarding;
use super::model::{UpstreamModel, UpstreamReplica};
use super::reason::Reason;
use super::request::{Endpoint, UpstreamRequest};
use super::smallest_request::answered_endpoint;
use super::stream::UpstreamStream;
use crate::dispatch::{Placement, RegionBound, Wanted};

/// Maximum wait of a request for the first probe of an engine, if no other engine is eligible.
const FIRST_PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// The start of an engine's answer.
#[derive(Debug)]
pub enum UpstreamAnswer {
    /// An answer that has arrived completely.
    Whole(Bytes),
    /// A stream whose first event has arrived.
    Stream(UpstreamStream),
    /// Rejection of the request, with status and body.
    Rejected(StatusCode, Bytes),
}

/// An engine that answers, and its share of the load.
#[derive(Debug)]
pub struct AnsweringEngine {
    /// Start of the answer.
    pub answer: UpstreamAnswer,
    /// Placement, held until the answer ends.
    pub placement: Placement,
}

/// A request for a model of upstream engines.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// Model of the request.
    pub model: &'a UpstreamModel,
    /// Requested endpoint.
    pub endpoint: Endpoint,
    /// Parsed body of the request.
    pub request: &'a UpstreamRequest,
    /// Id of the request, for the log.
    pub request_id: &'a str,
    /// Tenant, whose prompts are separated from those of others.
    pub tenant: &'a TenantId,
    /// Name of the only engine that may answer.
    pub pinned: Option<&'a str>,
    /// Regions that the request is bound to, if any.
    pub bound: Option<&'a dyn RegionBound>,
    /// Headers for the next gateway, if the engine is one.
    pub forwarding: &'a Forwarding,
    /// Maximum bytes of a whole answer.
    pub max_answer_bytes: usize,
}

/// Reason why no engine has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// The engine lacks the endpoint; its own message.
    Unsupported(String),
    /// No engine was eligible.
    NoEngine,
    /// All engines tried have failed; the most informative fault.
    Failed(Fault),
}

impl Unanswered {
    /// Name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unsupported(_) => "upstream_unsupported",
            Self::NoEngine => "no_healthy_worker",
            Self::Failed(fault) => fault.name(),
        }
    }
}

/// Submits a request to one engine after the other, until one answers.
///
/// # Errors
/// When no engine answers.
pub async fn submit(submission: Submission<'_>) -> Result<AnsweringEngine, Unanswered> {
    let Submission { model, endpoint, request, request_id, pinned, bound, .. } = submission;
    let blocks = request.blocks(submission.tenant);
    let n_tokens = u32::try_from(request.n_prompt_tokens).unwrap_or(u32::MAX);
    let mut attempts = Attempts::default();
    let mut worst_fault: Option<Fault> = None;
    model.dispatcher.request();
    model.dispatcher.await_first_probe(FIRST_PROBE_PATIENCE).await;
    loop {
        let wanted =
            Wanted { n_tokens, blocks: &blocks, session: None, pinned, bound, tried: attempts.tried() };
        let Some(placement) = model.dispatcher.place(&wanted) else { break };
        attempts.ask(placement.replica());
        // The engine may have been removed meanwhile.
        let Some(replica) = model.replica(placement.replica()) else { continue };
        let is_lost = match attempt(&replica, &submission).await {
            Ok(answer) => return Ok(AnsweringEngine { answer, placement }),
            Err(Fault::Rejected(status, body)) => {
                let answer = UpstreamAnswer::Rejected(status, body);
                return Ok(AnsweringEngine { answer, placement });
            }
            // A missing endpoint, such as embeddings, does not count against a chat engine.
            Err(fault) if fault.is_unknown_there() && endpoint != answered_endpoint(&replica) => {
                return Err(Unanswered::Unsupported(fault.told()));
            }
            Err(fault) => {
                report(&replica, &fault, request_id);
                let is_of_the_engine = fault.is_of_the_engine();
                if worst_fault.as_ref().is_none_or(|known| is_of_the_engine && !known.is_of_the_engine()) {
                    worst_fault = Some(fault.clone());
                }
                if !is_of_the_engine && attempts.turn_away() {
                    continue;
                }
                let is_lost = is_loss(&fault, &placement);
                replica.note(Some(&fault));
                // A gateway without room in some regions may have room in others.
                if bound.is_none() || !matches!(fault, Fault::Busy(_)) {
                    placement.failed();
                }
                is_lost
            }
        };
        match attempts.retry(is_lost) {
            Retry::Free => {}
            Retry::Paid if model.dispatcher.may_retry() => {}
            Retry::Paid | Retry::Never => break,
        }
    }
    if let Some(bound) = bound {
        bound.refused("no engine in a permitted region has answered");
    }
    Err(worst_fault.map_or(Unanswered::NoEngine, Unanswered::Failed))
}

/// Whether an attempt was lost with its engine and may be repeated without using the retry budget. A failed
/// connection costs no engine any work. A broken connection is free only while the engine counts as ready:
/// after a few losses it is ejected, so an engine that fails on every request cannot multiply the load.
fn is_loss(fault: &Fault, placement: &Placement) -> bool {
    match fault {
        Fault::Unreachable(_) => true,
        Fault::Broken(_) => placement.was_ready(),
        _ => false,
    }
}

async fn attempt(replica: &UpstreamReplica, submission: &Submission<'_>) -> Result<UpstreamAnswer, Fault> {
    let Submission { endpoint, request, forwarding, max_answer_bytes, .. } = *submission;
    let upstream = &replica.upstream;
    let body = request.body_for(&replica.model_there);
    let answer = post(upstream, endpoint, forwarding, body).await?;
    let is_stream = answer
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|media_type| media_type.as_bytes().starts_with(b"text/event-stream"));
    let reading = async {
        match (is_stream, request.is_streaming) {
            (true, true) => first_events(answer.into_body(), upstream.timeout).await,
            (false, false) => whole(endpoint, answer.into_body(), max_answer_bytes).await,
            (false, true) => Err(error_in_place_of_stream(answer.into_body()).await),
            (true, false) => Err(Fault::Nonsense("it does not answer in the form that was asked for")),
        }
    };
    within(upstream.timeout, reading).await.unwrap_or(Err(Fault::Silent))
}

/// Sends a request to the URL at which the engine has this endpoint.
pub(super) async fn post(
    upstream: &Upstream,
    endpoint: Endpoint,
    forwarding: &Forwarding,
    body: Bytes,
) -> Result<Response<Incoming>, Fault> {
    let mut first_fault = None;
    for url in endpoint.urls(upstream.base()) {
        match upstream.post(url, forwarding, body.clone(), upstream.timeout).await {
            Err(fault) if fault.is_unknown_there() => {
                first_fault.get_or_insert(fault);
            }
            answered => return answered,
        }
    }
    Err(first_fault.unwrap_or(Fault::Nonsense("it has no such endpoint")))
}

/// Logs a failing engine as a warning once a minute, and otherwise at debug level.
fn report(replica: &UpstreamReplica, fault: &Fault, request: &str) {
    let engine = replica.upstream.url();
    if replica.upstream.trouble.is_due(fault.name()) {
        tracing::warn!(request, engine, reason = fault.told(), "an engine failed");
    } else {
        tracing::debug!(request, engine, ?fault, "an engine failed");
    }
}

/// Members that distinguish a whole answer from an error.
#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<Cow<'a, str>>,
    #[serde(borrow)]
    choices: Option<Vec<ChoiceShape<'a>>>,
}

#[derive(Deserialize)]
struct ChoiceShape<'a> {
    /// Error of another server that the engine itself has called.
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

impl Shape<'_> {
    /// The error in place of the answer `bytes`.
    fn error(&self, bytes: &[u8]) -> Option<Fault> {
        let is_error = |error: &Option<&RawValue>| error.is_some_and(|error| error.get() != "null");
        if is_error(&self.error) || self.object.as_deref() == Some("error") {
            return Some(fault_in(bytes));
        }
        let has_failed = |choice: &&ChoiceShape<'_>| {
            is_error(&choice.error) && choice.finish_reason.as_deref().is_none_or(|reason| reason == "error")
        };
        let error = self.choices.iter().flatten().find(has_failed)?.error?;
        Some(fault_in(format!("{{\"error\":{}}}", error.get()).as_bytes()))
    }
}

/// The error in place of a whole answer.
pub(super) fn error_in(bytes: &[u8]) -> Option<Fault> {
    serde_json::from_slice::<Shape<'_>>(bytes).ok()?.error(bytes)
}

async fn whole(endpoint: Endpoint, body: Incoming, max_bytes: usize) -> Result<UpstreamAnswer, Fault> {
    let bytes = read_all(body, max_bytes).await?;
    if !endpoint.generates() && bytes.trim_ascii_start().starts_with(b"[") {
        // Some engines, such as TEI, answer with a bare list.
        let list = serde_json::from_slice::<IgnoredAny>(&bytes);
        return list
            .map(|_| UpstreamAnswer::Whole(bytes))
            .map_err(|_| Fault::Nonsense("its answer is no JSON"));
    }
    let shape: Shape<'_> =
        serde_json::from_slice(&bytes).map_err(|_| Fault::Nonsense("its answer is no JSON object"))?;
    if let Some(fault) = shape.error(&bytes) {
        return Err(fault);
    }
    let has_choices = shape.choices.is_some_and(|choices| !choices.is_empty());
    if endpoint.generates()
        && !has_choices
        && let Some(reason) = Reason::read(&bytes)
    {
        return Err(Fault::of_answer(reason, bytes));
    }
    Ok(UpstreamAnswer::Whole(bytes))
}

/// The fault for an error in place of an answer.
fn fault_in(bytes: &[u8]) -> Fault {
    match Reason::read(bytes) {
        Some(reason) => Fault::of_answer(reason, Bytes::copy_from_slice(bytes)),
        None => Fault::Nonsense("it answers with an error that says nothing"),
    }
}

async fn error_in_place_of_stream(body: Incoming) -> Fault {
    let nonsense = Fault::Nonsense("it does not answer in the form that was asked for");
    match read_all(body, MAX_ERROR_BYTES).await {
        Ok(bytes) => error_in(&bytes)
            .or_else(|| Some(Fault::of_answer(Reason::read(&bytes)?, bytes)))
            .unwrap_or(nonsense),
        Err(fault) => fault,
    }
}

/// Reads until the first event with content.
async fn first_events(mut body: Incoming, timeout: Duration) -> Result<UpstreamAnswer, Fault> {
    let (mut splitter, mut first) = (EventSplitter::default(), Vec::new());
    loop {
        while let Some(event) = splitter.next_event() {
            match classify(&event) {
                EventKind::Nothing => {}
                EventKind::Error => return Err(fault_in(data_of(&event).unwrap_or_default())),
                seen => first.push((event, seen)),
            }
        }
        if !first.is_empty() {
            return Ok(UpstreamAnswer::Stream(UpstreamStream::new(first, splitter, body, timeout)));
        }
        let broke_off = || Fault::Broken("the stream broke off before its first event".to_owned());
        let Some(frame) = body.frame().await else {
            let last = splitter.last().ok_or_else(broke_off)?;
            splitter.push(&last).map_err(|_| broke_off())?;
            continue;
        };
        let frame = frame.map_err(|_| broke_off())?;
        if let Ok(data) = frame.into_data() {
            splitter.push(&data).map_err(|_| Fault::Nonsense("an event of its stream is too large"))?;
        }
    }
}
