//! From a request to an engine that answers it: attempts at one engine after the other, until one has
//! something to tell. Nothing of an answer has reached the client before that. Does not know how answers are
//! shown.

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

/// Longest wait of a request for the first probe of an engine, where no other one can answer.
const FIRST_PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// The beginning of an engine's answer.
#[derive(Debug)]
pub enum UpstreamAnswer {
    /// The whole answer.
    Whole(Bytes),
    /// A stream of which the first event has come.
    Stream(UpstreamStream),
    /// Rejection of the request, with status and body.
    Rejected(StatusCode, Bytes),
}

/// An engine that answers, and its part of the load.
#[derive(Debug)]
pub struct AnsweringEngine {
    /// The beginning of its answer.
    pub answer: UpstreamAnswer,
    /// Placement that is held as long as it answers.
    pub placement: Placement,
}

/// A request for a model of upstream engines.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The model.
    pub model: &'a UpstreamModel,
    /// The endpoint that is asked.
    pub endpoint: Endpoint,
    /// The request's body, as far as it was read.
    pub request: &'a UpstreamRequest,
    /// The request's id, for the log.
    pub request_id: &'a str,
    /// The tenant, whose prompts are kept apart from those of others.
    pub tenant: &'a TenantId,
    /// The name of the only engine that may answer.
    pub pinned: Option<&'a str>,
    /// The regions that it is bound to, if there are some.
    pub bound: Option<&'a dyn RegionBound>,
    /// Headers for the next gateway, should the engine be one.
    pub forwarding: &'a Forwarding,
    /// Most bytes of a whole answer.
    pub max_answer_bytes: usize,
}

/// Reasons for which no engine has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// The engine does not have this endpoint; its own words.
    Unsupported(String),
    /// No engine could be asked.
    NoEngine,
    /// All engines that were asked have failed; the fault that says most.
    Failed(Fault),
}

impl Unanswered {
    /// A word for metrics.
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
/// When none does.
pub async fn submit(submission: Submission<'_>) -> Result<AnsweringEngine, Unanswered> {
    let Submission { model, endpoint, request, request_id, pinned, bound, .. } = submission;
    let blocks = request.blocks(submission.tenant);
    let n_tokens = u32::try_from(request.n_prompt_tokens).unwrap_or(u32::MAX);
    let mut attempts = Attempts::default();
    let mut worst_fault: Option<Fault> = None;
    model.dispatcher.request();
    model.dispatcher.await_first_probe(FIRST_PROBE_PATIENCE).await;
    loop {
        let wanted = Wanted { n_tokens, blocks: &blocks, pinned, bound, tried: attempts.tried() };
        let Some(placement) = model.dispatcher.place(&wanted) else { break };
        attempts.ask(placement.replica());
        // It may have gone in this moment.
        let Some(replica) = model.replica(placement.replica()) else { continue };
        let is_lost = match attempt(&replica, &submission).await {
            Ok(answer) => return Ok(AnsweringEngine { answer, placement }),
            Err(Fault::Rejected(status, body)) => {
                let answer = UpstreamAnswer::Rejected(status, body);
                return Ok(AnsweringEngine { answer, placement });
            }
            // An engine for chats is no worse for having no embeddings.
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
                // Where a gateway has no room in some regions, it may have some in others.
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

/// Whether an attempt was lost with its engine and goes on elsewhere without being counted as a retry: such
/// attempts multiply nobody's load. One that found no connection cost no engine anything. Of those whose
/// connection broke, only the ones count that were sent to an engine known to be ejected: after a few losses
/// an engine is, so that each of its ends costs what ran there, and an engine that ends under every request
/// costs no more than the budget.
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

/// Sends a request to where the engine has this endpoint.
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

/// The log has a failing engine once a minute, and what it costs each request at a level of its own.
fn report(replica: &UpstreamReplica, fault: &Fault, request: &str) {
    let engine = replica.upstream.url();
    if replica.upstream.trouble.is_due(fault.name()) {
        tracing::warn!(request, engine, reason = fault.told(), "an engine failed");
    } else {
        tracing::debug!(request, engine, ?fault, "an engine failed");
    }
}

/// Members that tell a whole answer from an error.
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
    /// A service that asks others reports here what became of its own.
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

impl Shape<'_> {
    /// The error that stands where the answer `bytes` should be.
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

/// The error that a whole answer is.
pub(super) fn error_in(bytes: &[u8]) -> Option<Fault> {
    serde_json::from_slice::<Shape<'_>>(bytes).ok()?.error(bytes)
}

async fn whole(endpoint: Endpoint, body: Incoming, max_bytes: usize) -> Result<UpstreamAnswer, Fault> {
    let bytes = read_all(body, max_bytes).await?;
    if !endpoint.generates() && bytes.trim_ascii_start().starts_with(b"[") {
        // TEI and others answer with a bare list.
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

/// The error that stands where an answer should be.
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

/// Reads until the first event that says something.
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
