//! The workers and foreign engines of a gateway. A worker is followed by a task that keeps a connection to it, and joins the route of
//! its model once it has described itself. Does not know requests.

mod config;
mod engine_config;
mod follow;
mod learned_model;
mod membership;

use std::sync::Arc;

use crate::foreign::{self, Upstream};
use crate::gateway::Loading;
use crate::replica::Link;
use membership::Membership;

pub use config::{FleetError, ReplicaConfig};

/// Most workers and engines of a gateway.
const MAX_REPLICAS: usize = 1024;

/// The workers and foreign engines of a gateway; they are followed until it is dropped.
#[derive(Debug)]
pub struct Fleet {
    _following: tokio::task::JoinSet<()>,
    n_replicas: usize,
}

impl Fleet {
    /// Follows these workers and engines, whose models `loading` serves as they come. `default_token` is for workers without one of their own.
    ///
    /// # Errors
    /// When an address, a token or a certificate cannot be used, or there are too many.
    pub fn start(
        replicas: &[ReplicaConfig],
        default_token: Option<&crate::config::Secret>,
        loading: &Loading,
    ) -> Result<Self, FleetError> {
        if replicas.len() > MAX_REPLICAS {
            return Err(FleetError::TooMany { max: MAX_REPLICAS });
        }
        let engines = replicas.iter().filter(|replica| replica.is_foreign());
        let engines = engines.map(|replica| Ok((replica, Arc::new(replica.upstream()?))));
        let engines: Vec<(_, Arc<Upstream>)> = engines.collect::<Result<_, FleetError>>()?;
        let workers = replicas.iter().filter(|replica| !replica.is_foreign());
        let endpoints = workers.map(|replica| replica.endpoint(default_token));
        let endpoints: Vec<_> = endpoints.collect::<Result<_, _>>()?;
        for (i, endpoint) in endpoints.iter().enumerate() {
            if endpoints[..i].iter().any(|other| other.address == endpoint.address) {
                return Err(FleetError::Twice { url: endpoint.address.to_string() });
            }
        }
        let links: Vec<_> = endpoints.into_iter().map(|endpoint| Arc::new(Link::new(endpoint))).collect();
        let _ = loading.workers().set(links.clone());
        let membership = Arc::new(Membership::new(loading.clone()));
        let mut following = tokio::task::JoinSet::new();
        for link in links {
            following.spawn(follow::follow(membership.clone(), link));
        }
        follow_engines(&engines, loading, &mut following);
        Ok(Self { _following: following, n_replicas: replicas.len() })
    }

    /// How many workers and engines there are.
    pub fn n_replicas(&self) -> usize {
        self.n_replicas
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
}

/// Lets an engine serve a model, and says so if it cannot.
fn join(loading: &Loading, names: Vec<String>, upstream: &Arc<Upstream>, model_there: String) {
    let name = names.first().cloned().unwrap_or_default();
    if let Err(reason) = loading.add_foreign(names, upstream.clone(), model_there) {
        tracing::warn!(engine = upstream.url(), model = name, reason, "an engine cannot serve a model");
    }
}
