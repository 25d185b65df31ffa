//! The replicas of one model, and which of them a request goes to: the router and the health of `throng_core`
//! decide among those that answer. Does not know what requests ask for.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use throng_core::fleet::health::HealthConfig;
use throng_core::fleet::routing::ReplicaId;
use throng_core::scheduling::block_pool::CacheCursor;
use throng_core::time::Nanos;

use super::observed::FleetRecording;
use super::{Replica, Status};
use crate::dispatch::{Dispatcher, HealthReporter, Placement, RoutingSettings, Wanted};

/// The replicas of a model. They come and go, and all clones see it.
#[derive(Debug, Clone)]
pub struct Replicas(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dispatcher: Arc<Dispatcher>,
    /// Whether their failures and times are judged: those of this process know themselves how they are.
    are_judged: bool,
    patience: Duration,
    recording: OnceLock<FleetRecording>,
    members: RwLock<Arc<[Member]>>,
}

#[derive(Debug, Clone)]
struct Member {
    id: ReplicaId,
    replica: Arc<dyn Replica>,
    /// Changes of its prefix cache that are known, of a replica that does not report them.
    cursor: Arc<Mutex<CacheCursor>>,
}

impl Replicas {
    /// Replicas in this process.
    pub fn local(replicas: Vec<Arc<dyn Replica>>, routing: &RoutingSettings) -> Self {
        let health = HealthConfig { max_slowness: u32::MAX, ..HealthConfig::default() };
        let this = Self::new(routing, health, false);
        replicas.into_iter().for_each(|replica| this.add(replica));
        for member in this.members().iter() {
            this.0.dispatcher.set_region(member.id, routing.region.clone());
        }
        this
    }

    /// Replicas in other processes, none yet.
    pub fn remote(routing: &RoutingSettings) -> Self {
        // Workers of one model may be machines of several kinds: only what is much slower than the others is a fault.
        let (max_slowness, probe_interval) = (5, Nanos::from_ms(5_000));
        Self::new(routing, HealthConfig { max_slowness, probe_interval, ..HealthConfig::default() }, true)
    }

    fn new(routing: &RoutingSettings, health: HealthConfig, are_judged: bool) -> Self {
        let (dispatcher, members) = (Dispatcher::new(routing, health), RwLock::default());
        let (patience, recording) = (routing.patience, OnceLock::new());
        Self(Arc::new(Inner { dispatcher, are_judged, patience, recording, members }))
    }

    /// The recording that is told of requests, if there is one.
    pub(super) fn recording(&self) -> Option<&FleetRecording> {
        self.0.recording.get()
    }

    /// The same, whose requests a recording is told of.
    #[must_use]
    pub fn recorded(self, recording: Option<FleetRecording>) -> Self {
        recording.into_iter().for_each(|recording| drop(self.0.recording.set(recording)));
        self
    }

    fn members(&self) -> Arc<[Member]> {
        self.0.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The present replicas.
    pub fn now(&self) -> Vec<Arc<dyn Replica>> {
        self.members().iter().map(|member| member.replica.clone()).collect()
    }

    /// Adds one.
    pub fn add(&self, replica: Arc<dyn Replica>) {
        let mut members = self.0.members.write().unwrap_or_else(PoisonError::into_inner);
        let name = replica.name().unwrap_or_else(|| members.len().to_string());
        let dispatcher = &self.0.dispatcher;
        let id = if self.0.are_judged { dispatcher.add(&name) } else { dispatcher.add_ready(&name) };
        replica.attach(HealthReporter::new(dispatcher.clone(), id));
        let member = Member { id, replica, cursor: Arc::default() };
        *members = members.iter().cloned().chain([member]).collect();
    }

    /// Takes one away. What it runs goes on.
    pub fn remove(&self, replica: &Arc<dyn Replica>) {
        let mut members = self.0.members.write().unwrap_or_else(PoisonError::into_inner);
        let (gone, stay): (Vec<Member>, Vec<Member>) =
            members.iter().cloned().partition(|member| Arc::ptr_eq(&member.replica, replica));
        *members = stay.into();
        gone.iter().for_each(|member| self.0.dispatcher.remove(member.id));
    }

    /// The dispatcher, which counts their requests and retries.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.0.dispatcher
    }

    /// Whether a choice depends on what they have cached.
    pub fn need_blocks(&self) -> bool {
        self.members().len() > 1 && self.0.dispatcher.uses_blocks()
    }

    /// Next replica for a request; `None` when those in `tried` are all there are, or all that it may go to.
    /// Those that answer come first.
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
            // None can be expected to answer: what it says is what clients are told.
            Status::Stalled | Status::Lost => dispatcher.place_among(wanted, &answering),
        }?;
        self.placed(&members, placement)
    }

    fn placed(&self, members: &[Member], placement: Placement) -> Option<(Placement, Arc<dyn Replica>)> {
        let member = members.iter().find(|member| member.id == placement.replica())?;
        Some((placement.judged(self.0.are_judged), member.replica.clone()))
    }

    /// Next replica of a request that waits for one: only one that answers and is known to be fit for
    /// requests.
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

    /// Time for which a started request waits for a replica to come back; `None` for replicas of this
    /// process.
    pub fn patience(&self) -> Option<Duration> {
        self.0.are_judged.then_some(self.0.patience)
    }

    /// Whether none of them answers.
    pub fn are_away(&self) -> bool {
        self.members().iter().all(|member| member.replica.status() != Status::Ready)
    }

    /// One that would be asked next if nothing were known of the request.
    pub fn any(&self) -> Option<Arc<dyn Replica>> {
        let members = self.members();
        let least = members
            .iter()
            .min_by_key(|member| (member.replica.status(), member.replica.load().n_sequences()));
        least.map(|member| member.replica.clone())
    }

    /// Replicas of this process tell nothing by themselves, but can be asked at once.
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
