//! Which workers the gateway has: those that all sources tell together. One that comes is followed by a task; one that goes gets no new
//! requests, and its task ends with its last stream. Does not know models and routes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::config::Credentials;
use super::discovery::Found;
use super::follow::follow;
use super::membership::Membership;
use crate::replica::{Endpoint, Link, Links, WorkerAddress};

/// Most workers and engines of a gateway.
pub(super) const MAX_REPLICAS: usize = 1024;
/// A worker that goes may finish its streams for so long; then they go on elsewhere.
pub(super) const MAX_DRAIN: Duration = Duration::from_secs(300);

/// The workers of a gateway.
#[derive(Debug)]
pub(super) struct Roster {
    membership: Arc<Membership>,
    links: Arc<Links>,
    sources: Vec<SourceState>,
    members: Vec<Member>,
    following: JoinSet<()>,
}

/// What one source told last.
#[derive(Debug)]
pub(super) struct SourceState {
    /// What its workers must be shown.
    pub credentials: Credentials,
    /// Its workers.
    pub found: Vec<Found>,
}

#[derive(Debug)]
struct Member {
    address: WorkerAddress,
    /// Dropped when it goes.
    _stays: oneshot::Sender<()>,
}

impl Roster {
    /// The workers of these sources.
    pub fn new(membership: Arc<Membership>, links: Arc<Links>, sources: Vec<SourceState>) -> Self {
        let mut roster = Self { membership, links, sources, members: Vec::new(), following: JoinSet::new() };
        roster.reconcile();
        roster
    }

    /// Follows what the sources tell, for ever.
    pub async fn run(mut self, mut told: mpsc::Receiver<(usize, Vec<Found>)>) {
        loop {
            tokio::select! {
                Some((idx, found)) = told.recv() => {
                    self.sources[idx].found = found;
                    self.reconcile();
                }
                Some(_) = self.following.join_next() => {}
                else => return,
            }
        }
    }

    fn reconcile(&mut self) {
        let all =
            self.sources.iter().flat_map(|source| source.found.iter().map(move |found| (source, found)));
        let mut wanted = HashSet::new();
        let mut new = Vec::new();
        for (source, found) in all {
            if wanted.len() >= MAX_REPLICAS {
                tracing::warn!(max = MAX_REPLICAS, "more workers are found than are used");
                break;
            }
            let is_known = self.members.iter().any(|member| member.address == found.address);
            if wanted.insert(found.address.clone()) && !is_known {
                new.push(source.credentials.endpoint(found));
            }
        }
        self.members.retain(|member| {
            let stays = wanted.contains(&member.address);
            if !stays {
                tracing::info!(worker = member.address.to_string(), "a worker is no longer listed");
            }
            stays
        });
        new.into_iter().for_each(|endpoint| self.add(endpoint));
    }

    fn add(&mut self, endpoint: Endpoint) {
        let (stays, gone) = oneshot::channel::<()>();
        self.members.push(Member { address: endpoint.address.clone(), _stays: stays });
        let link = Arc::new(Link::new(endpoint));
        self.links.add(link.clone());
        let (membership, links) = (self.membership.clone(), self.links.clone());
        self.following.spawn(async move {
            let leaving = async {
                let _ = gone.await;
                membership.leave(&link).await;
                if tokio::time::timeout(MAX_DRAIN, link.drained()).await.is_err() {
                    tracing::warn!(worker = link.endpoint.label(), "its streams go on elsewhere");
                }
            };
            tokio::select! {
                () = follow(membership.clone(), link.clone()) => {}
                () = leaving => {}
            }
            links.remove(&link);
        });
    }
}
