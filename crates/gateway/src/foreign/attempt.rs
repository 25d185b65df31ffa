//! From a request to an engine that answers it: attempts at one engine after the other, until one has something to tell. Nothing of an
//! answer has reached the client before that. Does not know how answers are shown.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use throng_core::routing::ReplicaId;

use super::events::{EventSplitter, Seen, see};
use super::model::{ForeignModel, ForeignReplica};
use super::request::{Endpoint, ForeignRequest};
use super::upstream::{Fault, read_all};
use crate::connection::RequestContext;
use crate::dispatch::{Bound, Placement, Wanted};
use crate::openai::ApiError;
use crate::regions::Forwarding;
use crate::retry_after::retry_after_s;

/// Most engines that a request is sent to, each at most once …
const MAX_ATTEMPTS: usize = 3;
/// … and most gateways besides that cannot forward it where it may go, which costs them no work.
const MAX_TURNED_AWAY: usize = 16;

/// What an engine has begun to tell.
#[derive(Debug)]
pub(super) enum Told {
    /// The whole answer.
    Whole(Bytes),
    /// The rest of a stream of which the first event has come.
    Stream {
        /// Events that came, and the beginning of the next.
        first: Vec<(Bytes, Seen)>,
        /// What came after them.
        splitter: EventSplitter,
        /// The rest.
        body: Incoming,
    },
    /// That the request is wrong.
    Rejected(StatusCode, Bytes),
}

/// An engine that answers, and its part of the load.
#[derive(Debug)]
pub(super) struct Answering {
    /// What it has begun to tell.
    pub told: Told,
    /// Held as long as it does.
    pub placement: Placement,
    /// The engine.
    pub replica: Arc<ForeignReplica>,
}

/// Asks engines until one tells something.
///
/// # Errors
/// What clients are told when none does.
pub(super) async fn begin(
    model: &ForeignModel,
    endpoint: Endpoint,
    request: &ForeignRequest,
    context: &RequestContext,
    (bound, forwarding): (Option<&Bound>, &Forwarding),
    max_answer_bytes: usize,
) -> Result<Answering, ApiError> {
    let blocks = request.blocks(&context.tenant());
    let n_tokens = u32::try_from(request.n_prompt_tokens).unwrap_or(u32::MAX);
    let (mut tried, mut n_turned_away): (Vec<ReplicaId>, usize) = (Vec::new(), 0);
    let mut worst_fault: Option<Fault> = None;
    model.dispatcher.request();
    loop {
        let pinned = context.destination.replica();
        let wanted = Wanted { n_tokens, blocks: &blocks, pinned, bound, tried: &tried };
        let Some(placement) = model.dispatcher.place(&wanted) else { break };
        tried.push(placement.replica());
        // It may have gone in this moment.
        let Some(replica) = model.replica(placement.replica()) else { continue };
        let is_lost = match attempt(&replica, endpoint, forwarding, request, max_answer_bytes).await {
            Ok(told) => return Ok(Answering { told, placement, replica }),
            Err(Fault::Rejected(status, body)) => {
                return Ok(Answering { told: Told::Rejected(status, body), placement, replica });
            }
            Err(fault) => {
                let engine = replica.upstream.url();
                tracing::warn!(request = context.id_text(), engine, ?fault, "an engine failed");
                let is_of_the_engine = fault.is_of_the_engine();
                if worst_fault.as_ref().is_none_or(|known| is_of_the_engine && !known.is_of_the_engine()) {
                    worst_fault = Some(fault.clone());
                }
                if !is_of_the_engine && n_turned_away < MAX_TURNED_AWAY {
                    n_turned_away += 1;
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
        if tried.len() - n_turned_away >= MAX_ATTEMPTS || !is_lost && !model.dispatcher.may_retry() {
            break;
        }
    }
    let reason = worst_fault.as_ref().map_or("no_healthy_worker", Fault::name);
    model.metrics.rejected(reason);
    if let Some(bound) = bound {
        bound.refused("no engine in a permitted region has answered");
    }
    Err(match worst_fault {
        None | Some(Fault::Unreachable(_) | Fault::Broken(_)) => ApiError::no_healthy_worker(retry_after_s()),
        Some(Fault::Busy(_)) => ApiError::overloaded("The engines of this model are busy.", retry_after_s()),
        Some(Fault::Silent) => ApiError::upstream_timeout(),
        Some(Fault::Loop) => ApiError::too_many_hops(),
        Some(Fault::OutOfRegion) => ApiError::region_not_permitted(),
        Some(_) => ApiError::upstream_error(),
    })
}

/// Whether an attempt was lost with its engine and goes on elsewhere without being counted as a retry: such attempts multiply nobody's
/// load. One that found no connection cost no engine anything. Of those whose connection broke, only the ones count that were sent to an
/// engine known to be ejected: after a few losses an engine is, so that each of its ends costs what ran there, and an engine that
/// ends under every request costs no more than the budget.
fn is_loss(fault: &Fault, placement: &Placement) -> bool {
    match fault {
        Fault::Unreachable(_) => true,
        Fault::Broken(_) => placement.was_ready(),
        _ => false,
    }
}

async fn attempt(
    replica: &ForeignReplica,
    endpoint: Endpoint,
    forwarding: &Forwarding,
    request: &ForeignRequest,
    max_answer_bytes: usize,
) -> Result<Told, Fault> {
    let upstream = &replica.upstream;
    let body = request.body_for(&replica.model_there);
    let answer = upstream.post(endpoint.path(), forwarding, body, upstream.timeout).await?;
    let is_stream = answer
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|media_type| media_type.as_bytes().starts_with(b"text/event-stream"));
    if is_stream != request.is_streaming {
        return Err(Fault::Nonsense("it does not answer in the form that was asked for"));
    }
    let reading = async {
        if is_stream {
            first_events(answer.into_body()).await
        } else {
            whole(answer.into_body(), max_answer_bytes).await
        }
    };
    tokio::time::timeout(upstream.timeout, reading).await.unwrap_or(Err(Fault::Silent))
}

async fn whole(body: Incoming, max_bytes: usize) -> Result<Told, Fault> {
    let bytes = read_all(body, max_bytes).await?;
    match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
        Ok(_) => Ok(Told::Whole(bytes)),
        Err(_) => Err(Fault::Nonsense("its answer is no JSON")),
    }
}

/// Reads until the first event that says something.
async fn first_events(mut body: Incoming) -> Result<Told, Fault> {
    let (mut splitter, mut first) = (EventSplitter::default(), Vec::new());
    loop {
        while let Some(event) = splitter.next() {
            match see(&event) {
                Seen::Nothing => {}
                Seen::Error => return Err(Fault::Nonsense("its stream began with an error")),
                seen => first.push((event, seen)),
            }
        }
        if !first.is_empty() {
            return Ok(Told::Stream { first, splitter, body });
        }
        let broke_off = || Fault::Broken("the stream broke off before its first event".to_owned());
        let frame = body.frame().await.ok_or_else(broke_off)?.map_err(|_| broke_off())?;
        if let Ok(data) = frame.into_data() {
            splitter.push(&data).map_err(|_| Fault::Nonsense("an event of its stream is too large"))?;
        }
    }
}
