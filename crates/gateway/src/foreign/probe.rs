//! Asks engines for their models, and probes those that are new or ejected with a request of one token. Does not know clients' requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;
use throng_core::health::{Probe, State};
use throng_core::routing::ReplicaId;
use tokio::time::Instant;

use super::model::{ForeignModel, ForeignModels, ForeignReplica, MAX_MODELS};
use super::request::Endpoint;
use super::upstream::{Fault, Upstream, read_all};
use crate::regions::Forwarding;

/// Between two looks at which probes are due.
const PROBE_TICK: Duration = Duration::from_millis(100);
/// For the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// From the end of one measurement of the round trips to all engines to the next.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// For the answer of one engine in a measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// Engines that are measured at a time.
const MAX_MEASURED: usize = 16;
/// Between two attempts to learn the models of an engine.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Of a list of models, and of the answer to a probe.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Deserialize)]
struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Debug, Deserialize)]
struct ModelCard {
    id: String,
}

/// Asks an engine for its models until it tells them.
pub(crate) async fn learn_models(upstream: &Upstream) -> Vec<String> {
    loop {
        match upstream
            .get("/models", MAX_BYTES, PROBE_TIMEOUT)
            .await
            .map(|list| serde_json::from_slice(&list))
        {
            Ok(Ok(ModelList { data })) if !data.is_empty() => {
                return data.into_iter().take(MAX_MODELS).map(|card| card.id).collect();
            }
            told => tracing::warn!(engine = upstream.url(), ?told, "an engine does not tell its models"),
        }
        tokio::time::sleep(LIST_INTERVAL).await;
    }
}

/// Measures the round trips to the engines that have a region, for ever: from a question for their models to the answer.
pub(crate) async fn measure(models: Arc<ForeignModels>) {
    loop {
        let engines = futures_util::stream::iter(measurable(&models));
        engines.for_each_concurrent(MAX_MEASURED, Measurable::measure).await;
        tokio::time::sleep(MEASURE_INTERVAL).await;
    }
}

/// An engine and the models that it serves, with its number in each.
struct Measurable {
    upstream: Arc<Upstream>,
    served: Vec<(Arc<ForeignModel>, ReplicaId)>,
}

impl Measurable {
    async fn measure(self) {
        let began = Instant::now();
        if self.upstream.get("/models", MAX_BYTES, MEASURE_TIMEOUT).await.is_ok() {
            let round_trip = began.elapsed();
            self.served.iter().for_each(|(model, id)| model.dispatcher.measured(*id, round_trip));
        }
    }
}

/// The engines that have a region and are ready, each once.
fn measurable(models: &ForeignModels) -> Vec<Measurable> {
    let mut engines: Vec<Measurable> = Vec::new();
    for model in models.now().iter() {
        for ForeignReplica { id, upstream, .. } in model.replicas().iter().map(Arc::as_ref) {
            if upstream.region.is_none() || model.dispatcher.state(*id).0 != State::Ready {
                continue;
            }
            let served = (model.clone(), *id);
            match engines.iter_mut().find(|known| Arc::ptr_eq(&known.upstream, upstream)) {
                Some(known) => known.served.push(served),
                None => engines.push(Measurable { upstream: upstream.clone(), served: vec![served] }),
            }
        }
    }
    engines
}

/// Probes the engines of all models for ever.
pub(crate) async fn probe(models: Arc<ForeignModels>) {
    let mut ticks = tokio::time::interval(PROBE_TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for model in models.now().iter() {
            for probe in model.dispatcher.probes_due() {
                match model.replica(probe.replica) {
                    Some(replica) => drop(tokio::spawn(probe_one(model.clone(), replica, probe))),
                    // It is added in the next moment.
                    None => model.dispatcher.probed(probe, None),
                }
            }
        }
    }
}

async fn probe_one(model: Arc<ForeignModel>, replica: Arc<ForeignReplica>, probe: Probe) {
    let began = Instant::now();
    let outcome = one_token(&replica).await;
    let answered = outcome.is_ok().then(|| began.elapsed());
    if let Err(fault) = &outcome {
        tracing::warn!(engine = replica.upstream.url(), model = model.id(), ?fault, "a probe failed");
    } else {
        tracing::info!(engine = replica.upstream.url(), model = model.id(), "an engine answers");
    }
    replica.note(outcome.err().as_ref());
    model.dispatcher.probed(probe, answered);
}

/// A chat of one token; for engines that cannot chat a completion. One that says that it is busy is alive.
async fn one_token(replica: &ForeignReplica) -> Result<(), Fault> {
    let model = &replica.model_there;
    let chat = json!({"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1});
    match ask(&replica.upstream, Endpoint::Chat, chat.to_string()).await {
        Err(Fault::Rejected(..)) => {}
        Err(Fault::Failed(status)) if status.is_client_error() => {}
        outcome => return outcome,
    }
    let completion = json!({"model": model, "prompt": ".", "max_tokens": 1});
    ask(&replica.upstream, Endpoint::Completions, completion.to_string()).await
}

async fn ask(upstream: &Upstream, endpoint: Endpoint, body: String) -> Result<(), Fault> {
    let asking = async {
        match upstream.post(endpoint.path(), &Forwarding::OWN, Bytes::from(body), PROBE_TIMEOUT).await {
            Ok(answer) => read_all(answer.into_body(), MAX_BYTES).await.map(drop),
            Err(Fault::Busy(http::StatusCode::TOO_MANY_REQUESTS)) => Ok(()),
            Err(fault) => Err(fault),
        }
    };
    tokio::time::timeout(PROBE_TIMEOUT, asking).await.unwrap_or(Err(Fault::Silent))
}
