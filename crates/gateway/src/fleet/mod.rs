//! The workers and foreign engines of a gateway. Sources tell which workers there are. A worker is followed by a task that keeps a
//! connection to it, and joins the route of its model once it has described itself. Does not know requests.

mod config;
mod discovery;
mod engine_config;
mod follow;
mod learned_model;
mod membership;
mod roster;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use crate::foreign::{self, Upstream};
use crate::gateway::Loading;
use discovery::Source;
use membership::Membership;
use roster::{MAX_REPLICAS, Roster, SourceState};
use tokio::sync::mpsc;

pub use config::{FleetError, ReplicaConfig};
pub use discovery::KubernetesApi;

/// Between two looks at what has settled.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);

/// The workers and foreign engines of a gateway; they are followed until it is dropped.
#[derive(Debug)]
pub struct Fleet {
    _following: tokio::task::JoinSet<()>,
    loading: Loading,
    n_replicas: usize,
    n_sources: usize,
}

impl Fleet {
    /// Follows these workers and engines, whose models `loading` serves as they come. `default_token` is for workers without one of their own.
    ///
    /// # Errors
    /// When an address, a region, a token or a certificate cannot be used, or there are too many.
    pub fn start(
        replicas: &[ReplicaConfig],
        default_token: Option<&crate::config::Secret>,
        loading: &Loading,
    ) -> Result<Self, FleetError> {
        if replicas.len() > MAX_REPLICAS {
            return Err(FleetError::TooMany { max: MAX_REPLICAS });
        }
        replicas.iter().try_for_each(|replica| replica.check_region(loading.routing()))?;
        let engines = replicas.iter().filter(|replica| replica.is_foreign());
        let engines = engines.map(|replica| Ok((replica, Arc::new(replica.upstream()?))));
        let engines: Vec<(_, Arc<Upstream>)> = engines.collect::<Result<_, FleetError>>()?;
        let workers = replicas.iter().filter(|replica| !replica.is_foreign());
        let workers = workers.map(|replica| Ok((replica, replica.workers(default_token)?)));
        let workers: Vec<_> = workers.collect::<Result<_, FleetError>>()?;
        for (i, (config, (source, _))) in workers.iter().enumerate() {
            if workers[..i].iter().any(|(_, (other, _))| other == source) {
                return Err(FleetError::Twice { url: source.to_string() });
            }
            let Some(name) = &config.name else { continue };
            if workers[..i].iter().any(|(other, _)| other.name.as_ref() == Some(name)) {
                return Err(FleetError::SameName { name: name.clone() });
            }
        }
        let (tell, told) = mpsc::channel(1);
        let mut following = tokio::task::JoinSet::new();
        let mut sources = Vec::with_capacity(workers.len());
        let n_sources = workers.iter().filter(|(_, (source, _))| !source.is_static()).count();
        for (idx, (config, (source, credentials))) in workers.into_iter().enumerate() {
            let found = match source {
                Source::Address(address) => vec![address.into()],
                source => {
                    following.spawn(source.follow(idx, config.kubernetes_api.clone(), tell.clone()));
                    Vec::new()
                }
            };
            sources.push(SourceState { credentials, found });
        }
        let membership = Arc::new(Membership::new(loading.clone()));
        let roster = Roster::new(membership, loading.workers().clone(), sources);
        following.spawn(roster.run(told));
        follow_engines(&engines, loading, &mut following);
        Ok(Self {
            _following: following,
            loading: loading.clone(),
            n_replicas: replicas.len() - n_sources,
            n_sources,
        })
    }

    /// Waits until all workers and engines that are known have answered or failed once and a model is served, at most for `limit`.
    pub async fn settled(&self, limit: Duration) {
        let is_settled = || {
            let links = self.loading.workers().now();
            links.iter().all(|link| link.was_tried()) && self.loading.is_settled()
        };
        let settling = async {
            while !is_settled() {
                tokio::time::sleep(SETTLE_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(limit, settling).await;
    }

    /// How many workers and engines are named, and how many sources tell more of them.
    pub fn n_replicas(&self) -> (usize, usize) {
        (self.n_replicas, self.n_sources)
    }
}

/// Engines whose model is named serve it at once; the others are asked for their models.
fn follow_engines(
    engines: &[(&ReplicaConfig, Arc<Upstream>)],
    loading: &Loading,
    following: &mut tokio::task::JoinSet<()>,
) {
    if engines.is_empty() {
        return;
    }
    for (config, upstream) in engines {
        match &config.model {
            Some(model) => {
                let names = if config.names.is_empty() { vec![model.clone()] } else { config.names.clone() };
                join(loading, names, upstream, model.clone());
            }
            None => {
                let (loading, upstream) = (loading.clone(), upstream.clone());
                following.spawn(async move {
                    for model in foreign::learn_models(&upstream).await {
                        join(&loading, vec![model.clone()], &upstream, model);
                    }
                });
            }
        }
    }
    following.spawn(foreign::probe(loading.foreign().clone()));
    following.spawn(foreign::measure(loading.foreign().clone()));
}

/// Lets an engine serve a model, and says so if it cannot.
fn join(loading: &Loading, names: Vec<String>, upstream: &Arc<Upstream>, model_there: String) {
    let name = names.first().cloned().unwrap_or_default();
    if let Err(reason) = loading.add_foreign(names, upstream.clone(), model_there) {
        tracing::warn!(engine = upstream.url(), model = name, reason, "an engine cannot serve a model");
    }
}
