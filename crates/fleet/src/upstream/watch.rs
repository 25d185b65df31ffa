//! Looks after ready engines at no cost: asks for their models, so that one that is gone or hangs is noticed
//! before clients wait for it. Does not know clients' requests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use throng_core::fleet::health::State;
use throng_core::fleet::routing::ReplicaId;
use tokio::time::Instant;

use super::connection::Upstream;
use super::fault::Fault;
use super::model::{UpstreamModel, UpstreamModels, UpstreamReplica};
use super::probe::model_list;

/// Interval of round-trip measurements of all engines.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of a round-trip measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of looks at all ready engines.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the next look at an engine that cannot be reached: as many failed looks as failed requests
/// eject it.
const SHORT_INTERVAL: Duration = Duration::from_millis(500);
/// Number of looks at an engine that cannot be reached, in one round.
const N_LOOKS: usize = 5;
/// Maximum number of engines asked at a time.
const MAX_AT_A_TIME: usize = 16;

/// Measures round trips to engines with a region. Never returns.
pub async fn measure(models: Arc<UpstreamModels>) {
    loop {
        let engines = ready_engines(&models).into_iter().filter(|engine| engine.upstream.region.is_some());
        let engines = futures_util::stream::iter(engines);
        engines.for_each_concurrent(MAX_AT_A_TIME, ReadyEngine::measure).await;
        tokio::time::sleep(MEASURE_INTERVAL).await;
    }
}

/// Looks at all ready engines: an engine that cannot be reached, or is silent, has failed as if a request
/// had. Never returns.
pub async fn watch(models: Arc<UpstreamModels>) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let engines = futures_util::stream::iter(ready_engines(&models));
        engines.for_each_concurrent(MAX_AT_A_TIME, ReadyEngine::look).await;
    }
}

/// An engine that is ready, with the models it serves and itself as a replica of each.
struct ReadyEngine {
    upstream: Arc<Upstream>,
    served: Vec<(Arc<UpstreamModel>, Arc<UpstreamReplica>)>,
}

impl ReadyEngine {
    async fn measure(self) {
        let began = Instant::now();
        if model_list(&self.upstream, MEASURE_TIMEOUT).await.is_ok() {
            let round_trip = began.elapsed();
            self.served.iter().for_each(|(model, replica)| model.dispatcher.measured(replica.id, round_trip));
        }
    }

    async fn look(self) {
        for _ in 0..N_LOOKS {
            let Err(fault) = model_list(&self.upstream, LOOK_TIMEOUT).await else { return };
            // Whatever else it answers, it is there.
            if !matches!(fault, Fault::Unreachable(_) | Fault::Broken(_) | Fault::Silent) {
                return;
            }
            for (model, replica) in &self.served {
                replica.note(Some(&fault));
                model.dispatcher.failed(replica.id);
            }
            // A busy engine may be slow.
            if fault == Fault::Silent {
                return;
            }
            tokio::time::sleep(SHORT_INTERVAL).await;
        }
    }
}

fn is_ready(model: &UpstreamModel, id: ReplicaId) -> bool {
    model.dispatcher.state(id).0 == State::Ready
}

/// Engines that are ready, each once.
fn ready_engines(models: &UpstreamModels) -> Vec<ReadyEngine> {
    let mut engines: Vec<ReadyEngine> = Vec::new();
    for model in models.now().iter() {
        for replica in model.replicas().into_iter().filter(|replica| is_ready(model, replica.id)) {
            let upstream = replica.upstream.clone();
            let served = (model.clone(), replica);
            match engines.iter_mut().find(|known| Arc::ptr_eq(&known.upstream, &upstream)) {
                Some(known) => known.served.push(served),
                None => engines.push(ReadyEngine { upstream, served: vec![served] }),
            }
        }
    }
    engines
}
