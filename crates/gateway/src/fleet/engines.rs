//! An engine of another maker that a source tells, while it is listed and until its last request has ended after that: it serves its models once it
//! has told them. Does not know sources and workers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::discovery::Found;
use super::engine_config::EngineSettings;
use super::roster::{MAX_DRAIN, Serve};
use crate::foreign::{self, Upstream};
use crate::gateway::Loading;

/// Between two looks at whether an engine that is no longer listed still runs something.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Serves engines.
#[derive(Debug)]
pub(super) struct Engines(pub Loading);

impl Serve for Engines {
    type Settings = EngineSettings;
    /// The same engine may serve several models, each by its own source.
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
        let (loading, upstream) = (self.0.clone(), Arc::new(settings.found(found)));
        let is_named = join_named(&loading, settings, &upstream);
        let serving = async move {
            let serving = async {
                if !is_named {
                    join_told(&loading, &upstream).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = serving => {}
                _ = delisted => {}
            }
            leave(&loading, &upstream).await;
        };
        serving.boxed()
    }
}

/// Lets an engine serve the model that is named, at once. Whether one is; else it must be asked for its models.
pub(super) fn join_named(loading: &Loading, settings: &EngineSettings, upstream: &Arc<Upstream>) -> bool {
    let named = settings.model().map(|(model, names)| join(loading, names, upstream, model.to_owned()));
    named.is_some()
}

/// Lets an engine serve the models that it tells.
pub(super) async fn join_told(loading: &Loading, upstream: &Arc<Upstream>) {
    loading.foreign().set_idle(upstream, true);
    for model in foreign::learn_models(upstream).await {
        join(loading, vec![model.clone()], upstream, model);
    }
}

/// Lets an engine serve a model, and says so if it cannot.
fn join(loading: &Loading, names: Vec<String>, upstream: &Arc<Upstream>, model_there: String) {
    let name = names.first().cloned().unwrap_or_default();
    match loading.add_foreign(names, upstream.clone(), model_there) {
        Ok(()) => loading.foreign().set_idle(upstream, false),
        Err(reason) => {
            tracing::warn!(engine = upstream.url(), model = name, reason, "an engine cannot serve a model");
            upstream.trouble.begin(format!("it cannot serve {name}: {reason}"));
            // One that serves another model is no longer idle.
            let serves = loading.foreign().serves(upstream);
            loading.foreign().set_idle(upstream, !serves);
        }
    }
}

async fn leave(loading: &Loading, upstream: &Arc<Upstream>) {
    let (engine, models) = (upstream.url(), loading.foreign());
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
