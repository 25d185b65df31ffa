//! Which engines of other makers the gateway has of those that sources tell. One that comes serves its models once it has answered a
//! probe; one that goes gets no new requests, and is forgotten with its last one. Does not know workers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::discovery::Found;
use super::engine_config::EngineSettings;
use super::roster::{MAX_DRAIN, MAX_REPLICAS};
use crate::foreign::{self, Upstream};
use crate::gateway::Loading;

/// Between two looks at whether an engine that goes still runs something.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// The engines of a gateway that are found.
#[derive(Debug)]
pub(super) struct EngineRoster {
    loading: Loading,
    sources: Vec<EngineSource>,
    members: Vec<Member>,
    serving: JoinSet<()>,
}

/// What one source told last.
#[derive(Debug)]
struct EngineSource {
    settings: EngineSettings,
    found: Vec<Found>,
}

#[derive(Debug)]
struct Member {
    source_idx: usize,
    found: Found,
    /// Dropped when it goes.
    _stays: oneshot::Sender<()>,
}

impl EngineRoster {
    /// The engines of sources that have told nothing yet.
    pub fn new(loading: Loading, sources: Vec<EngineSettings>) -> Self {
        let sources = sources.into_iter().map(|settings| EngineSource { settings, found: Vec::new() });
        Self { loading, sources: sources.collect(), members: Vec::new(), serving: JoinSet::new() }
    }

    /// Follows what the sources tell, for ever.
    pub async fn run(mut self, mut told: mpsc::Receiver<(usize, Vec<Found>)>) {
        loop {
            tokio::select! {
                Some((idx, found)) = told.recv() => {
                    self.sources[idx].found = found;
                    self.reconcile();
                }
                Some(_) = self.serving.join_next() => {}
                else => return,
            }
        }
    }

    fn reconcile(&mut self) {
        let sources = &self.sources;
        self.members.retain(|member| sources[member.source_idx].found.contains(&member.found));
        let members = &self.members;
        let is_known = |source_idx: usize, found: &Found| {
            members.iter().any(|member| member.source_idx == source_idx && member.found == *found)
        };
        let all = sources
            .iter()
            .enumerate()
            .flat_map(|(idx, source)| source.found.iter().map(move |found| (idx, found)));
        let mut new: Vec<(usize, Found)> = Vec::new();
        for (source_idx, found) in all {
            if is_known(source_idx, found) || new.contains(&(source_idx, found.clone())) {
                continue;
            }
            if members.len() + new.len() >= MAX_REPLICAS {
                tracing::warn!(max = MAX_REPLICAS, "more engines are found than are used");
                break;
            }
            new.push((source_idx, found.clone()));
        }
        new.into_iter().for_each(|(source_idx, found)| self.add(source_idx, found));
    }

    fn add(&mut self, source_idx: usize, found: Found) {
        let settings = self.sources[source_idx].settings.clone();
        let upstream = Arc::new(settings.found(&found));
        let (stays, gone) = oneshot::channel::<()>();
        self.members.push(Member { source_idx, found, _stays: stays });
        let loading = self.loading.clone();
        let is_named = join_named(&loading, &settings, &upstream);
        self.serving.spawn(async move {
            let serving = async {
                if !is_named {
                    join_told(&loading, &upstream).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = serving => {}
                _ = gone => {}
            }
            leave(&loading, &upstream).await;
        });
    }
}

/// Lets an engine serve the model that is named, at once. Whether one is; else it must be asked for its models.
pub(super) fn join_named(loading: &Loading, settings: &EngineSettings, upstream: &Arc<Upstream>) -> bool {
    let named = settings.model().map(|(model, names)| join(loading, names, upstream, model.to_owned()));
    named.is_some()
}

/// Lets an engine serve the models that it tells.
pub(super) async fn join_told(loading: &Loading, upstream: &Arc<Upstream>) {
    for model in foreign::learn_models(upstream).await {
        join(loading, vec![model.clone()], upstream, model);
    }
}

/// Lets an engine serve a model, and says so if it cannot.
fn join(loading: &Loading, names: Vec<String>, upstream: &Arc<Upstream>, model_there: String) {
    let name = names.first().cloned().unwrap_or_default();
    if let Err(reason) = loading.add_foreign(names, upstream.clone(), model_there) {
        tracing::warn!(engine = upstream.url(), model = name, reason, "an engine cannot serve a model");
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
