//! Lists the models of engines, and probes new and ejected engines with a request of one token. Does not
//! know clients' requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use throng_core::fleet::health::Probe;
use throng_http::awake::within;
use tokio::time::Instant;

use super::attempt::{error_in, post};
use super::connection::{Upstream, read_all};
use super::fault::Fault;
use super::forwarding::Forwarding;
use super::model::{MAX_MODELS, UpstreamModel, UpstreamModels, UpstreamReplica};
use super::request::Endpoint;
use super::smallest_request::smallest_request;

/// Interval of checks which probes are due.
const PROBE_TICK: Duration = Duration::from_millis(100);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two requests for an engine's models.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum bytes of a list of models, and of a probe's answer.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Deserialize)]
struct ModelList {
    /// Some engines without models send `null`.
    data: Option<Vec<ModelCard>>,
}

#[derive(Debug, Deserialize)]
struct ModelCard {
    id: String,
}

/// Asks an engine for its models until it answers. Records the reason for each failure.
pub async fn learn_models(upstream: &Upstream) -> Vec<String> {
    loop {
        match list(upstream).await {
            Ok(models) => {
                upstream.trouble.end();
                return models;
            }
            Err(fault) => upstream.complain(&fault),
        }
        tokio::time::sleep(LIST_INTERVAL).await;
    }
}

/// Asks an engine for its list of models, which costs nothing there.
pub(super) async fn model_list(upstream: &Upstream, timeout: Duration) -> Result<Bytes, Fault> {
    upstream.get("/models", MAX_BYTES, timeout).await
}

/// Lists the models of an engine, trying each of its possible base addresses.
async fn list(upstream: &Upstream) -> Result<Vec<String>, Fault> {
    let mut first_fault = None;
    for _ in 0..upstream.n_bases() {
        let told = model_list(upstream, PROBE_TIMEOUT).await;
        match told.and_then(|list| models_of(&list)) {
            Ok(models) => {
                upstream.keep_base();
                return Ok(models);
            }
            Err(fault) if fault.is_unknown_there() || matches!(fault, Fault::Nonsense(_)) => {
                first_fault.get_or_insert(fault);
                upstream.try_next_base();
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(first_fault.unwrap_or(Fault::Nonsense("it does not tell its models")))
}

fn models_of(list: &[u8]) -> Result<Vec<String>, Fault> {
    let list: ModelList = serde_json::from_slice(list)
        .map_err(|_| Fault::Nonsense("its list of models is none: is it a server with OpenAI's API?"))?;
    let models: Vec<String> =
        list.data.unwrap_or_default().into_iter().take(MAX_MODELS).map(|card| card.id).collect();
    if models.is_empty() { Err(Fault::Nonsense("it lists no models")) } else { Ok(models) }
}

/// Probes the engines of all models. Never returns.
pub async fn probe(models: Arc<UpstreamModels>) {
    let mut ticks = tokio::time::interval(PROBE_TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for model in models.now().iter() {
            for probe in model.dispatcher.probes_due() {
                match model.replica(probe.replica) {
                    Some(replica) => drop(tokio::spawn(probe_one(model.clone(), replica, probe))),
                    // The engine will be added in a moment.
                    None => model.dispatcher.probed(probe, None),
                }
            }
        }
    }
}

async fn probe_one(model: Arc<UpstreamModel>, replica: Arc<UpstreamReplica>, probe: Probe) {
    let began = Instant::now();
    let outcome = one_token(&replica).await;
    let answered = outcome.is_ok().then(|| began.elapsed());
    let upstream = &replica.upstream;
    match &outcome {
        Ok(()) => tracing::info!(engine = upstream.url(), model = model.id(), "an engine answers"),
        Err(fault) if upstream.trouble.is_due(fault.name()) => {
            let reason = fault.told();
            tracing::warn!(engine = upstream.url(), model = model.id(), reason, "an engine does not answer");
        }
        Err(_) => {}
    }
    replica.note(outcome.err().as_ref());
    model.dispatcher.probed(probe, answered);
}

/// Sends the smallest request of the kind that the engine has answered before, or of each kind until it
/// answers one.
async fn one_token(replica: &UpstreamReplica) -> Result<(), Fault> {
    let known = replica.probe.load(Ordering::Relaxed);
    let mut first_fault = None;
    for kind in [known].into_iter().chain((0..).filter(|kind| *kind != known)) {
        let Some((endpoint, body)) = smallest_request(kind, &replica.model_there) else { break };
        match ask(&replica.upstream, endpoint, body.to_string()).await {
            Err(fault) if fault.is_of_the_kind() => {
                first_fault.get_or_insert(fault);
            }
            Err(fault) => return Err(first_fault.unwrap_or(fault)),
            Ok(()) => {
                replica.probe.store(kind, Ordering::Relaxed);
                replica.upstream.keep_base();
                return Ok(());
            }
        }
    }
    replica.upstream.try_next_base();
    Err(first_fault.unwrap_or(Fault::Nonsense("it answers no kind of request")))
}

/// Sends one request. An engine that refuses because of overload counts as healthy.
async fn ask(upstream: &Upstream, endpoint: Endpoint, body: String) -> Result<(), Fault> {
    let asking = async {
        match post(upstream, endpoint, &Forwarding::OWN, Bytes::from(body)).await {
            Ok(answer) => {
                let answer = read_all(answer.into_body(), MAX_BYTES).await?;
                error_in(&answer).map_or(Ok(()), Err)
            }
            Err(Fault::Busy(http::StatusCode::TOO_MANY_REQUESTS)) => Ok(()),
            Err(fault) => Err(fault),
        }
    };
    within(PROBE_TIMEOUT, asking).await.unwrap_or(Err(Fault::Silent))
}
