//! The workers or engines of a gateway that its sources list. A task serves each of them, is notified when no
//! source lists it any more, and then ends with its last request. Does not know how tasks serve them.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::discovery::Found;

/// Maximum number of workers and of engines of a gateway.
pub(super) const MAX_REPLICAS: usize = 1024;
/// Maximum time that a replica has to finish its requests after it is no longer listed.
pub(super) const MAX_DRAIN: Duration = Duration::from_secs(300);

/// Identity of a roster's members, and the task that serves each.
pub(super) trait Serve {
    /// Settings for all members of one source.
    type Settings;
    /// Identity of a member across sources.
    type Key: Clone + Eq + Hash;
    /// Name of the members in the log.
    const NAME: &'static str;

    /// The identity of a member in a source.
    fn key(source_idx: usize, found: &Found) -> Self::Key;

    /// Returns the task that serves a new member. `delisted` completes when no source lists it any more.
    fn serve(
        &self,
        settings: &Self::Settings,
        found: &Found,
        delisted: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()>;
}

/// The workers or the engines of a gateway.
#[derive(Debug)]
pub(super) struct Roster<S: Serve> {
    service: S,
    sources: Vec<SourceState<S::Settings>>,
    members: Vec<Member<S::Key>>,
    serving: JoinSet<()>,
}

/// The latest list of one source.
#[derive(Debug)]
pub(super) struct SourceState<Settings> {
    /// Settings for all members of the source.
    pub settings: Settings,
    /// Members that the source lists.
    pub found: Vec<Found>,
}

#[derive(Debug)]
struct Member<Key> {
    key: Key,
    /// Sender whose drop tells the task that the member is no longer listed.
    _listed: oneshot::Sender<()>,
}

impl<S: Serve> Roster<S> {
    /// Serves the members that these sources list.
    pub fn new(service: S, sources: Vec<SourceState<S::Settings>>) -> Self {
        let mut roster = Self { service, sources, members: Vec::new(), serving: JoinSet::new() };
        roster.reconcile();
        roster
    }

    /// Applies the lists that sources send. Never returns.
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
        let all = self.sources.iter().enumerate();
        let all = all.flat_map(|(idx, source)| source.found.iter().map(move |found| (idx, found)));
        let mut wanted = HashSet::new();
        let mut new = Vec::new();
        for (source_idx, found) in all {
            if wanted.len() >= MAX_REPLICAS {
                tracing::warn!(max = MAX_REPLICAS, "more {} are found than are used", S::NAME);
                break;
            }
            let key = S::key(source_idx, found);
            let is_known = self.members.iter().any(|member| member.key == key);
            if wanted.insert(key.clone()) && !is_known {
                new.push((source_idx, found.clone(), key));
            }
        }
        self.members.retain(|member| wanted.contains(&member.key));
        for (source_idx, found, key) in new {
            let (listed, delisted) = oneshot::channel();
            self.members.push(Member { key, _listed: listed });
            self.serving.spawn(self.service.serve(&self.sources[source_idx].settings, &found, delisted));
        }
    }
}
