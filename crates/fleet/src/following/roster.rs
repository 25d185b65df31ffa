//! What the gateway has of those that its sources tell, workers or engines. One that is listed is served by a
//! task, which is told when it is no longer listed and ends with the last request there. Does not know how
//! either is served.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::discovery::Found;

/// Most workers and engines of a gateway.
pub(super) const MAX_REPLICAS: usize = 1024;
/// One that is no longer listed may finish its requests for so long.
pub(super) const MAX_DRAIN: Duration = Duration::from_secs(300);

/// Keys of a roster's members, and the task that serves each.
pub(super) trait Serve {
    /// Settings of all members of one source.
    type Settings;
    /// Identity of a member, whatever source lists it.
    type Key: Clone + Eq + Hash;
    /// The members, for the log.
    const NAME: &'static str;

    /// The key of what a source tells.
    fn key(source_idx: usize, found: &Found) -> Self::Key;

    /// Adds a member, and returns what serves it. `delisted` completes when no source lists it any more.
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
    /// Settings of all of them.
    pub settings: Settings,
    /// Members that it lists.
    pub found: Vec<Found>,
}

#[derive(Debug)]
struct Member<Key> {
    key: Key,
    /// Dropped when it is no longer listed.
    _listed: oneshot::Sender<()>,
}

impl<S: Serve> Roster<S> {
    /// The members that these sources list.
    pub fn new(service: S, sources: Vec<SourceState<S::Settings>>) -> Self {
        let mut roster = Self { service, sources, members: Vec::new(), serving: JoinSet::new() };
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
