//! Upstream engines from sources. An engine serves its models while it is listed, and afterwards until its
//! last request has ended. Does not know sources and workers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::engine_config::EngineSettings;
use super::models::FleetModels;
use super::roster::{MAX_DRAIN, Serve};
use crate::discovery::Found;
use crate::upstream::{self, Upstream};

/// Interval of checks whether an engine that is no longer listed still has running requests.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Serves upstream engines.
#[derive(Debug)]
pub(super) struct Engines(pub Arc<dyn FleetModels>);

impl Serve for Engines {
    type Settings = EngineSettings;
    /// Index of the source and the engine: the same engine may serve several models, each from a source of
    /// its own.
    type Key = (usize, Found);
    const NAME: &'static str = "engines";

    fn key(source_idx: usize, found: &Found) -> Self::Key {
        (source_idx, found.clone())
    }

    fn serve(
        &self,
        settings: &EngineSettings,
        found: &Found,
        delisted: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()> {
        let (gateway, upstream) = (self.0.clone(), Arc::new(settings.found(found)));
        let is_named = join_named(&gateway, settings, &upstream);
        let settings = settings.clone();
        let serving = async move {
            let serving = async {
                if !is_named {
                    join_told(&gateway, &settings, &upstream).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = serving => {}
                _ = delisted => {}
            }
            leave(&gateway, &upstream).await;
        };
        serving.boxed()
    }
}

/// Starts serving the configured model on an engine. Returns false if no model is configured, so that the
/// engine must be queried for its models.
pub(super) fn join_named(
    gateway: &Arc<dyn FleetModels>,
    settings: &EngineSettings,
    upstream: &Arc<Upstream>,
) -> bool {
    let named = settings.model().map(|(model, names)| join(gateway, names, upstream, model.to_owned()));
    named.is_some()
}

/// Starts serving the models that an engine lists; a single one under the configured names, if any.
pub(super) async fn join_told(
    gateway: &Arc<dyn FleetModels>,
    settings: &EngineSettings,
    upstream: &Arc<Upstream>,
) {
    gateway.upstreams().set_idle(upstream, true);
    let models = upstream::learn_models(upstream).await;
    let names = settings.names();
    if !names.is_empty() && models.len() > 1 {
        let reason =
            format!("it lists {} models: 'model' must say which one has these 'names'", models.len());
        tracing::warn!(engine = upstream.url(), reason, "an engine cannot serve a model");
        upstream.trouble.begin(reason);
        return;
    }
    for model in models {
        let names = if names.is_empty() { vec![model.clone()] } else { names.to_vec() };
        join(gateway, names, upstream, model);
    }
}

/// Starts serving a model on an engine. Logs the reason if that fails.
fn join(gateway: &Arc<dyn FleetModels>, names: Vec<String>, upstream: &Arc<Upstream>, model_there: String) {
    let name = names.first().cloned().unwrap_or_default();
    match gateway.add_upstream(names, upstream.clone(), model_there) {
        Ok(()) => gateway.upstreams().set_idle(upstream, false),
        Err(reason) => {
            tracing::warn!(engine = upstream.url(), model = name, reason, "an engine cannot serve a model");
            upstream.trouble.begin(format!("it cannot serve {name}: {reason}"));
            // An engine that serves another model is not idle.
            let serves = gateway.upstreams().serves(upstream);
            gateway.upstreams().set_idle(upstream, !serves);
        }
    }
}

async fn leave(gateway: &Arc<dyn FleetModels>, upstream: &Arc<Upstream>) {
    let (engine, models) = (upstream.url(), gateway.upstreams());
    tracing::info!(engine, "an engine is no longer listed");
    models.drain(upstream);
    let drained = async {
        while models.n_running(upstream) > 0 {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    };
    if tokio::time::timeout(MAX_DRAIN, drained).await.is_err() {
        tracing::warn!(engine, "an engine that is no longer listed still runs requests");
    }
    models.remove(upstream);
}
