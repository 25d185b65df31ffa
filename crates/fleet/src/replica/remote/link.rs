//! What a gateway knows of one worker at present: the connection, the model that it described, its last
//! status. Whoever follows the worker writes it; replicas read it and never wait. Does not connect.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::fleet::health::{Probe, State};
use throng_core::fleet::routing::Region;
use throng_core::time::Nanos;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{Connection, Endpoint};
use crate::dispatch::HealthReporter;
use crate::replica::{Load, ReplicaError, ReplicaErrorKind, Status, received_error};

/// One worker as it is known at present.
#[derive(Debug)]
pub struct Link {
    /// Address and credentials of the worker.
    pub endpoint: Endpoint,
    known: Mutex<Known>,
    /// Sequences of this gateway that it runs.
    n_own: AtomicUsize,
    /// Reporters for requests of each model that it ever had: each gets its state while it has the model.
    reporters: Mutex<Vec<(Identity, HealthReporter)>>,
    /// Notified when there are none.
    idle: Notify,
    /// Whether it is no longer listed: what it runs may end, and nothing else begins.
    is_leaving: AtomicBool,
}

/// A model and a region as one worker described them, of all that it ever described. What was sent to a
/// worker in one region is not run by it in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The model's first name.
    pub model: Arc<str>,
    /// The worker's region.
    pub region: Option<Region>,
}

#[derive(Debug)]
struct Known {
    state: LinkState,
    /// Whether it was up or down since it is known.
    was_tried: bool,
    since: Instant,
    /// Names of the model that it described last.
    names: Vec<String>,
    fingerprint: Arc<str>,
    takes_media: bool,
    load: Load,
    /// Sequences that it had from others when it last said how it is.
    n_others: usize,
    /// Error with which it refuses new requests.
    refuses: Option<ReplicaError>,
}

#[derive(Debug)]
enum LinkState {
    /// No connection, or no description yet.
    Down { reason: String },
    /// Connected, with a model.
    Up { connection: Connection, identity: Identity, status: Status },
}

/// State of a worker, for people.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// A word for its state.
    pub state: &'static str,
    /// Reason for which it is not ready.
    pub reason: Option<String>,
    /// Time since which it is connected or not.
    pub since: Instant,
    /// The names of its model.
    pub names: Vec<String>,
    /// Equal where answers are equal to the bit.
    pub fingerprint: Arc<str>,
    /// Its load.
    pub load: Load,
    /// Whether it gets requests, if it is connected.
    pub health: Option<State>,
    /// Blocks that it is known to have cached.
    pub n_known_blocks: usize,
    /// Its region, and the shortest of the latest round trips to it.
    pub region_and_rtt: (Option<Region>, Option<Nanos>),
}

/// Counts sequences that a worker runs for this gateway.
#[derive(Debug)]
pub(super) struct OwnSequences {
    link: Arc<Link>,
    n: usize,
}

impl Drop for OwnSequences {
    fn drop(&mut self) {
        if self.link.n_own.fetch_sub(self.n, Ordering::AcqRel) == self.n {
            self.link.idle.notify_waiters();
        }
    }
}

impl Link {
    /// A worker that nothing is known of.
    pub fn new(endpoint: Endpoint) -> Self {
        let known = Known {
            state: LinkState::Down { reason: "not connected yet".to_owned() },
            was_tried: false,
            since: Instant::now(),
            names: Vec::new(),
            fingerprint: Arc::from(""),
            takes_media: false,
            load: Load::default(),
            n_others: 0,
            refuses: None,
        };
        let (n_own, reporters, idle, is_leaving) = Default::default();
        Self { endpoint, known: Mutex::new(known), n_own, reporters, idle, is_leaving }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it gets requests of the model of this identity, and where to report.
    pub(super) fn attach(&self, identity: Identity, reporter: HealthReporter) {
        let mut reporters = self.reporters.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.retain(|(known, _)| known.model != identity.model);
        reporter.set_region(identity.region.clone());
        reporters.push((identity, reporter));
    }

    /// The reporter of the model that it has.
    fn reporter(&self) -> Option<HealthReporter> {
        let LinkState::Up { identity, .. } = &self.known().state else { return None };
        self.reporter_of(identity)
    }

    fn reporter_of(&self, identity: &Identity) -> Option<HealthReporter> {
        let reporters = self.reporters.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.iter().find(|(known, _)| known == identity).map(|(_, reporter)| reporter.clone())
    }

    /// Notes that it answers and which model it has.
    pub fn set_up(&self, connection: Connection, identity: Identity, description: &throng_wire::Description) {
        let mut known = self.known();
        known.state = LinkState::Up { connection, identity, status: Status::Ready };
        known.was_tried = true;
        (known.since, known.refuses) = (Instant::now(), None);
        known.names.clone_from(&description.names);
        known.fingerprint = description.fingerprint.as_str().into();
        known.takes_media = description.takes_media;
        drop(known);
        if let Some(reporter) = self.reporter() {
            reporter.start_again();
        }
    }

    /// Whether it reads prompts with parts that are not text. One that does not know of them would pass them
    /// over.
    pub fn takes_media(&self) -> bool {
        self.known().takes_media
    }

    /// Notes a round trip to it.
    pub fn measured(&self, round_trip: Duration) {
        if let Some(reporter) = self.reporter() {
            reporter.measured(round_trip);
        }
    }

    /// Whether it has answered or failed to.
    pub fn was_tried(&self) -> bool {
        self.known().was_tried
    }

    /// Whether it has said which model it serves.
    pub fn was_described(&self) -> bool {
        !self.known().names.is_empty()
    }

    /// Notes that it is no longer listed.
    pub fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Whether it is no longer listed.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Completes when it runs nothing for this gateway.
    pub async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.n_own.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Whether it last said that it takes no new requests because it ends.
    pub fn is_draining(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.kind == ReplicaErrorKind::Draining)
    }

    /// Notes that it does not answer. Whether that is news.
    pub fn set_down(&self, reason: &str) -> bool {
        if let Some(reporter) = self.reporter() {
            reporter.start_again();
        }
        let mut known = self.known();
        let was_up = matches!(known.state, LinkState::Up { .. });
        let is_news = was_up || !matches!(&known.state, LinkState::Down { reason: old } if old == reason);
        known.state = LinkState::Down { reason: reason.to_owned() };
        known.was_tried = true;
        if was_up {
            (known.since, known.load, known.n_others) = (Instant::now(), Load::default(), 0);
        }
        is_news
    }

    /// Notes what it said of itself.
    pub fn set_status(&self, sent: throng_wire::Status) {
        if let Some(reporter) = self.reporter() {
            let load = sent.load;
            reporter.report(load.report(), load.totals.steps, load.n_sequences() > 0);
            if let Some(changes) = sent.cache {
                reporter.follow_cache(&changes);
            }
        }
        let n_own = self.n_own.load(Ordering::Relaxed);
        let mut known = self.known();
        known.load = sent.load;
        known.n_others = known.load.n_sequences().saturating_sub(n_own);
        known.refuses = sent.refuses.map(received_error);
        if let LinkState::Up { status, .. } = &mut known.state {
            *status = sent.health;
        }
    }

    /// The connection, if it has the model of this identity.
    pub(super) fn connection(&self, of: &Identity) -> Option<Connection> {
        match &self.known().state {
            LinkState::Up { connection, identity, .. } if identity == of => Some(connection.clone()),
            _ => None,
        }
    }

    /// Whether it answers with the model of this identity.
    pub(super) fn status(&self, of: &Identity) -> Status {
        match &self.known().state {
            LinkState::Up { identity, .. } if identity != of => Status::Lost,
            LinkState::Up { connection, .. } if connection.is_lost() => Status::Stalled,
            LinkState::Up { status, .. } => *status,
            LinkState::Down { .. } => Status::Stalled,
        }
    }

    /// Error with which it refuses new requests.
    pub(super) fn refusal(&self) -> Option<ReplicaError> {
        self.known().refuses.clone()
    }

    /// Its load as it last said, with the sequences that this gateway has given it since.
    pub fn load(&self) -> Load {
        let n_own = self.n_own.load(Ordering::Relaxed);
        let known = self.known();
        let n_waiting = (n_own + known.n_others).saturating_sub(known.load.n_running);
        Load { n_waiting, ..known.load }
    }

    /// Sequences of this gateway that it runs.
    pub fn n_own(&self) -> usize {
        self.n_own.load(Ordering::Relaxed)
    }

    /// Counts sequences that it is given.
    pub(super) fn begin(self: &Arc<Self>, n: usize) -> OwnSequences {
        self.n_own.fetch_add(n, Ordering::Relaxed);
        OwnSequences { link: self.clone(), n }
    }

    /// The probe that is to be made of it now, with where it is to be made.
    pub(super) fn probe_due(&self) -> Option<(Connection, HealthReporter, Probe)> {
        let LinkState::Up { connection, identity, status: Status::Ready } = &self.known().state else {
            return None;
        };
        let reporter = self.reporter_of(identity)?;
        let probe = reporter.probe_due()?;
        Some((connection.clone(), reporter, probe))
    }

    /// Steps that it has done, as it last said.
    pub(super) fn n_steps(&self) -> u64 {
        self.known().load.totals.steps
    }

    /// Report of its state, for people.
    pub fn report(&self) -> LinkReport {
        let (load, reporter) = (self.load(), self.reporter());
        let health = reporter.as_ref().map(HealthReporter::state);
        let region_and_rtt = reporter.as_ref().map(HealthReporter::region_and_rtt).unwrap_or_default();
        let n_known_blocks = reporter.map_or(0, |reporter| reporter.n_cached_blocks());
        let known = self.known();
        let (state, reason) = match &known.state {
            LinkState::Down { reason } => ("down", Some(reason.clone())),
            LinkState::Up { .. } if self.is_leaving() => {
                ("leaving", Some("it is no longer listed".to_owned()))
            }
            LinkState::Up { status: Status::Ready, .. } => match &known.refuses {
                None => match health {
                    Some((state, cause)) => (state.name(), cause.map(|cause| cause.name().to_owned())),
                    None => ("ready", None),
                },
                Some(refusal) => (refusal.kind.name(), Some(refusal.message.clone())),
            },
            LinkState::Up { status: Status::Stalled, .. } => ("stalled", None),
            LinkState::Up { status: Status::Lost, .. } => ("lost", None),
        };
        let (since, names, fingerprint) = (known.since, known.names.clone(), known.fingerprint.clone());
        LinkReport {
            state,
            reason,
            since,
            names,
            fingerprint,
            load,
            health: health.map(|(state, _)| state),
            n_known_blocks,
            region_and_rtt,
        }
    }
}
