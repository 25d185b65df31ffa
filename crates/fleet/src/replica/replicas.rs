//! The replicas of one model, and the choice among them: the router and the health board of `throng_core`
//! decide among those that answer. Does not know the content of requests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use throng_core::fleet::health::HealthConfig;
use throng_core::fleet::routing::ReplicaId;
use throng_core::scheduling::block_pool::CacheCursor;
use throng_wire::Holder;

use super::observed::FleetRecording;
use super::{PrefixHolder, Replica, Status};
use crate::dispatch::{Dispatcher, HealthReporter, Placement, RoutingSettings, Wanted};

/// Time after the loss of the last replica for which new requests wait for one. A worker that was only busy
/// or that starts again is back sooner; whoever asks later learns at once that there is none.
const MAX_NEW_WAIT: Duration = Duration::from_secs(5);

/// The replicas of a model. The set changes over time, and all clones share it.
#[derive(Debug, Clone)]
pub struct Replicas(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dispatcher: Arc<Dispatcher>,
    /// Whether failures and latencies count for their health: local replicas report their own status.
    are_judged: bool,
    patience: Duration,
    recording: OnceLock<FleetRecording>,
    members: RwLock<Arc<[Member]>>,
}

#[derive(Debug, Clone)]
struct Member {
    id: ReplicaId,
    replica: Arc<dyn Replica>,
    /// Position in the changes of a local replica's prefix cache.
    cursor: Arc<Mutex<CacheCursor>>,
}

impl Replicas {
    /// Creates the set of local replicas.
    pub fn local(replicas: Vec<Arc<dyn Replica>>, routing: &RoutingSettings) -> Self {
        let health = HealthConfig { max_slowness: u32::MAX, ..HealthConfig::default() };
        let this = Self::new(routing, health, false);
        replicas.into_iter().for_each(|replica| this.add(replica));
        for member in this.members().iter() {
            this.0.dispatcher.set_region(member.id, routing.region.clone());
        }
        this
    }

    /// Creates an empty set for remote replicas.
    pub fn remote(routing: &RoutingSettings) -> Self {
        Self::new(routing, HealthConfig::of_workers(), true)
    }

    fn new(routing: &RoutingSettings, health: HealthConfig, are_judged: bool) -> Self {
        let (dispatcher, members) = (Dispatcher::new(routing, health), RwLock::default());
        let (patience, recording) = (routing.patience, OnceLock::new());
        Self(Arc::new(Inner { dispatcher, are_judged, patience, recording, members }))
    }

    /// The recording of requests, if there is one.
    pub(super) fn recording(&self) -> Option<&FleetRecording> {
        self.0.recording.get()
    }

    /// Sets the recording of requests.
    #[must_use]
    pub fn recorded(self, recording: Option<FleetRecording>) -> Self {
        recording.into_iter().for_each(|recording| drop(self.0.recording.set(recording)));
        self
    }

    fn members(&self) -> Arc<[Member]> {
        self.0.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current replicas.
    pub fn now(&self) -> Vec<Arc<dyn Replica>> {
        self.members().iter().map(|member| member.replica.clone()).collect()
    }

    /// Adds a replica.
    pub fn add(&self, replica: Arc<dyn Replica>) {
        let mut members = self.0.members.write().unwrap_or_else(PoisonError::into_inner);
        let name = replica.name().unwrap_or_else(|| members.len().to_string());
        let dispatcher = &self.0.dispatcher;
        let id = if self.0.are_judged { dispatcher.add(&name) } else { dispatcher.add_ready(&name) };
        replica.attach(HealthReporter::new(dispatcher.clone(), id));
        let member = Member { id, replica, cursor: Arc::default() };
        *members = members.iter().cloned().chain([member]).collect();
    }

    /// Removes a replica. Its running requests go on.
    pub fn remove(&self, replica: &Arc<dyn Replica>) {
        let mut members = self.0.members.write().unwrap_or_else(PoisonError::into_inner);
        let (gone, stay): (Vec<Member>, Vec<Member>) =
            members.iter().cloned().partition(|member| Arc::ptr_eq(&member.replica, replica));
        *members = stay.into();
        gone.iter().for_each(|member| self.0.dispatcher.remove(member.id));
    }

    /// The dispatcher, which counts requests and retries.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.0.dispatcher
    }

    /// Whether routing depends on the replicas' prefix caches.
    pub fn need_blocks(&self) -> bool {
        self.members().len() > 1 && self.0.dispatcher.uses_blocks()
    }

    /// Chooses the next replica for a request, preferably one that answers. `None` when all permitted
    /// replicas have been tried.
    pub fn place(&self, wanted: &Wanted<'_>) -> Option<(Placement, Arc<dyn Replica>)> {
        let members = self.members();
        let untried: Vec<&Member> =
            members.iter().filter(|member| !wanted.tried.contains(&member.id)).collect();
        let best = untried.iter().map(|member| member.replica.status()).min()?;
        let answering: Vec<ReplicaId> =
            untried.iter().filter(|member| member.replica.status() <= best).map(|member| member.id).collect();
        if !self.0.are_judged {
            untried.iter().for_each(|member| self.look_at(member, !wanted.blocks.is_empty()));
        }
        let dispatcher = &self.0.dispatcher;
        let placement = match best {
            Status::Ready => dispatcher.place_answering(wanted, &answering),
            // No replica is expected to answer; the client gets the error of one of them.
            Status::Stalled | Status::Lost => dispatcher.place_among(wanted, &answering),
        }?;
        self.placed(&members, placement)
    }

    fn placed(&self, members: &[Member], placement: Placement) -> Option<(Placement, Arc<dyn Replica>)> {
        let member = members.iter().find(|member| member.id == placement.replica())?;
        Some((placement.judged(self.0.are_judged), member.replica.clone()))
    }

    /// The replica that has more of a request's prompt in its cache than the one that was chosen for it.
    pub fn holder_of(&self, placement: &Placement) -> Option<PrefixHolder> {
        let (id, n_blocks) = placement.holder()?;
        let (address, server_name) = self.member(id)?.block_address()?;
        Some(PrefixHolder::Worker(Holder { address: address.to_string(), server_name, n_blocks }))
    }

    /// The replica with this number.
    pub(super) fn member(&self, id: ReplicaId) -> Option<Arc<dyn Replica>> {
        self.members().iter().find(|member| member.id == id).map(|member| member.replica.clone())
    }

    /// Places a further attempt of a request at this replica, if it answers.
    pub(super) fn place_at(
        &self,
        wanted: &Wanted<'_>,
        id: ReplicaId,
    ) -> Option<(Placement, Arc<dyn Replica>)> {
        let replica = self.member(id).filter(|replica| replica.status() == Status::Ready)?;
        let placement = self.0.dispatcher.place_among(wanted, &[id])?;
        Some((placement.judged(self.0.are_judged), replica))
    }

    /// Chooses the next replica for a waiting request: only one that answers and is ready.
    pub fn place_ready(&self, wanted: &Wanted<'_>) -> Option<(Placement, Arc<dyn Replica>)> {
        let members = self.members();
        let dispatcher = &self.0.dispatcher;
        let mut ready = dispatcher.ready();
        let is_there = |id: &ReplicaId| {
            members.iter().any(|member| member.id == *id && member.replica.status() == Status::Ready)
        };
        ready.retain(is_there);
        self.placed(&members, dispatcher.place_among(wanted, &ready)?)
    }

    /// Time that a started request waits for a replica to come back; `None` for local replicas.
    pub fn patience(&self) -> Option<Duration> {
        self.0.are_judged.then_some(self.0.patience)
    }

    /// Time that a new request waits for a replica to come back: until [`MAX_NEW_WAIT`] after the last one
    /// was lost, which `is_now` if the request itself has found that out.
    pub(super) fn patience_with_new(&self, is_now: bool) -> Option<Duration> {
        let most = self.patience()?.min(MAX_NEW_WAIT);
        let last = self.members().iter().filter_map(|member| member.replica.lost_for()).min();
        let last = if is_now { Duration::ZERO } else { last? };
        most.checked_sub(last).filter(|rest| !rest.is_zero())
    }

    /// Whether no replica answers, but one that was lost a moment ago may be back soon.
    pub fn may_be_back(&self) -> bool {
        self.are_away() && self.patience_with_new(false).is_some()
    }

    /// Whether no replica answers.
    pub fn are_away(&self) -> bool {
        self.members().iter().all(|member| member.replica.status() != Status::Ready)
    }

    /// The replica that an arbitrary request would go to next.
    pub fn any(&self) -> Option<Arc<dyn Replica>> {
        let members = self.members();
        let least = members
            .iter()
            .min_by_key(|member| (member.replica.status(), member.replica.load().n_sequences()));
        least.map(|member| member.replica.clone())
    }

    /// Reads the state of a local replica, which does not report by itself.
    fn look_at(&self, member: &Member, with_cache: bool) {
        self.0.dispatcher.report(member.id, member.replica.load().report());
        if with_cache {
            let mut cursor = member.cursor.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(news) = member.replica.cache_news(&mut cursor).filter(|news| !news.is_empty()) {
                self.0.dispatcher.follow_cache(member.id, &news);
            }
        }
    }
}
