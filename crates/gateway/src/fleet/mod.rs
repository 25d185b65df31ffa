//! The workers of a gateway: each is followed by a task that keeps a connection to it, and joins the route of its model once it has
//! described itself. Does not know requests.

mod config;
mod follow;
mod learned_model;
mod membership;

use std::sync::Arc;

use crate::gateway::Loading;
use crate::replica::Link;
use membership::Membership;

pub use config::{FleetError, ReplicaConfig};

/// Most workers of a gateway.
const MAX_WORKERS: usize = 1024;

/// The workers of a gateway; they are followed until it is dropped.
#[derive(Debug)]
pub struct Fleet {
    following: tokio::task::JoinSet<()>,
}

impl Fleet {
    /// Follows these workers, whose models `loading` serves as they come. `default_token` is for those without one of their own.
    ///
    /// # Errors
    /// When an address, a token or a certificate cannot be used, or there are too many.
    pub fn start(
        replicas: &[ReplicaConfig],
        default_token: Option<&crate::config::Secret>,
        loading: &Loading,
    ) -> Result<Self, FleetError> {
        if replicas.len() > MAX_WORKERS {
            return Err(FleetError::TooMany { max: MAX_WORKERS });
        }
        let endpoints = replicas.iter().map(|replica| replica.endpoint(default_token));
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
        Ok(Self { following })
    }

    /// How many workers there are.
    pub fn n_workers(&self) -> usize {
        self.following.len()
    }
}
