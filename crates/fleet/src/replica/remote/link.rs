//! Current state of one worker: the connection, the described model, the last status. The task that follows
//! the worker writes it; replicas read it without waiting. Does not connect.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::fleet::health::{Probe, State};
use throng_core::fleet::replica::RankReport;
use throng_core::fleet::routing::{Region, Role};
use throng_core::time::Nanos;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{Connection, Endpoint};
use crate::dispatch::HealthReporter;
use crate::replica::{Load, ReplicaError, ReplicaErrorKind, SplitCounts, Status, received_error};

/// Current state of one worker.
#[derive(Debug)]
pub struct Link {
    /// Address and credentials of the worker.
    pub endpoint: Endpoint,
    known: Mutex<Known>,
    /// Number of sequences that the worker runs for this gateway.
    n_own: AtomicUsize,
    /// Reporters for each model that the worker has ever had. Only that of the current model is used.
    reporters: Mutex<Vec<(Identity, HealthReporter)>>,
    /// Notified when no such sequences are left.
    idle: Notify,
    /// Whether the worker is no longer listed: running requests may finish, and no new ones start.
    is_leaving: AtomicBool,
    /// Counts of requests whose prompts other workers computed first.
    pub(super) splits: Arc<SplitCounts>,
}

/// A model, a region and a role that one worker has described. A worker that changes one of them gets a new
/// identity, and requests for the old identity are not sent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// First name of the model.
    pub model: Arc<str>,
    /// Region of the worker.
    pub region: Option<Region>,
    /// Part of requests that the worker is meant for.
    pub role: Role,
}

#[derive(Debug)]
struct Known {
    state: LinkState,
    /// Whether a first connection attempt has succeeded or failed.
    was_tried: bool,
    since: Instant,
    /// Names of the model in the last description.
    names: Vec<String>,
    fingerprint: Arc<str>,
    takes_media: bool,
    role: Role,
    load: Load,
    ranks: Option<RankReport>,
    /// Number of sequences of other gateways in the last status.
    n_others: usize,
    /// Error with which the worker refuses new requests.
    refuses: Option<ReplicaError>,
}

impl Known {
    /// Notes the load of the worker, of which `n_own` sequences are those of this gateway.
    fn set_load(&mut self, load: Load, n_own: usize) {
        self.n_others = load.n_sequences().saturating_sub(n_own);
        self.load = load;
    }
}

#[derive(Debug)]
enum LinkState {
    /// No connection, or no description yet, for this reason.
    Down { reason: String },
    /// No longer connected for new requests: the worker has announced its end. Running requests may finish.
    Ending,
    /// Connected, with a model.
    Up { connection: Connection, identity: Identity, status: Status },
}

/// State of a worker, for operators.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// Name of the state.
    pub state: &'static str,
    /// Reason why the worker is not ready.
    pub reason: Option<String>,
    /// Time of the last change between connected and disconnected.
    pub since: Instant,
    /// Names of the model.
    pub names: Vec<String>,
    /// Fingerprint, equal for workers with bit-identical outputs.
    pub fingerprint: Arc<str>,
    /// Part of requests that the worker is meant for.
    pub role: Role,
    /// Load of the worker.
    pub load: Load,
    /// Ranks of the worker's model, if it is divided over processes.
    pub ranks: Option<RankReport>,
    /// Health, which determines whether a connected worker gets requests.
    pub health: Option<State>,
    /// Number of blocks in the worker's cache, as far as reported.
    pub n_known_blocks: usize,
    /// Region of the worker, and the shortest of the latest round trips to it.
    pub region_and_rtt: (Option<Region>, Option<Nanos>),
}

/// Guard that counts a worker's sequences for this gateway.
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
    /// Creates the state of a worker before the first connection.
    pub fn new(endpoint: Endpoint) -> Self {
        let known = Known {
            state: LinkState::Down { reason: "not connected yet".to_owned() },
            was_tried: false,
            since: Instant::now(),
            names: Vec::new(),
            fingerprint: Arc::from(""),
            takes_media: false,
            role: Role::default(),
            load: Load::default(),
            ranks: None,
            n_others: 0,
            refuses: None,
        };
        let (n_own, reporters, idle, is_leaving, splits) = Default::default();
        Self { endpoint, known: Mutex::new(known), n_own, reporters, idle, is_leaving, splits }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the reporter for requests to the model of this identity.
    pub(super) fn attach(&self, identity: Identity, reporter: HealthReporter) {
        let mut reporters = self.reporters.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.retain(|(known, _)| known.model != identity.model);
        reporter.set_region(identity.region.clone());
        reporter.set_role(identity.role);
        reporters.push((identity, reporter));
    }

    /// The reporter of the current model.
    fn reporter(&self) -> Option<HealthReporter> {
        let LinkState::Up { identity, .. } = &self.known().state else { return None };
        self.reporter_of(identity)
    }

    fn reporter_of(&self, identity: &Identity) -> Option<HealthReporter> {
        let reporters = self.reporters.lock().unwrap_or_else(PoisonError::into_inner);
        reporters.iter().find(|(known, _)| known == identity).map(|(_, reporter)| reporter.clone())
    }

    /// Records that the worker is connected and which model it has described.
    pub fn set_up(&self, connection: Connection, identity: Identity, description: &throng_wire::Description) {
        let mut known = self.known();
        known.state = LinkState::Up { connection, identity, status: Status::Ready };
        known.was_tried = true;
        (known.since, known.refuses) = (Instant::now(), None);
        known.names.clone_from(&description.names);
        known.fingerprint = description.fingerprint.as_str().into();
        (known.takes_media, known.role) = (description.takes_media, description.role);
        drop(known);
        if let Some(reporter) = self.reporter() {
            reporter.start_again();
        }
    }

    /// Whether the worker reads prompts with media. Older workers would ignore the media.
    pub fn takes_media(&self) -> bool {
        self.known().takes_media
    }

    /// Records a round trip to the worker.
    pub fn measured(&self, round_trip: Duration) {
        if let Some(reporter) = self.reporter() {
            reporter.measured(round_trip);
        }
    }

    /// Whether a first connection attempt has succeeded or failed.
    pub fn was_tried(&self) -> bool {
        self.known().was_tried
    }

    /// Whether the worker has described its model.
    pub fn was_described(&self) -> bool {
        !self.known().names.is_empty()
    }

    /// Records that the worker is no longer listed.
    pub fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Whether the worker is no longer listed.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Completes when the worker has no sequences of this gateway left.
    pub async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.n_own.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Whether the last status announced the worker's shutdown.
    pub fn is_draining(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.kind == ReplicaErrorKind::Draining)
    }

    /// Records that the worker does not answer. Returns whether that is news.
    pub fn set_down(&self, reason: &str) -> bool {
        self.restart_reporter();
        let mut known = self.known();
        let is_news = !matches!(&known.state, LinkState::Down { reason: old } if old == reason);
        if !matches!(known.state, LinkState::Down { .. }) {
            (known.since, known.load, known.n_others) = (Instant::now(), Load::default(), 0);
            known.ranks = None;
        }
        known.state = LinkState::Down { reason: reason.to_owned() };
        known.was_tried = true;
        is_news
    }

    /// Records that the worker takes no new requests because it ends. Returns whether that is news.
    pub fn set_ending(&self) -> bool {
        self.restart_reporter();
        let mut known = self.known();
        let is_news = !matches!(known.state, LinkState::Ending);
        if is_news {
            known.since = Instant::now();
        }
        known.state = LinkState::Ending;
        known.was_tried = true;
        is_news
    }

    fn restart_reporter(&self) {
        if let Some(reporter) = self.reporter() {
            reporter.start_again();
        }
    }

    /// Records the load of a worker that ends.
    pub fn set_remaining(&self, load: Load) {
        let n_own = self.n_own.load(Ordering::Relaxed);
        let mut known = self.known();
        if matches!(known.state, LinkState::Ending) {
            known.set_load(load, n_own);
        }
    }

    /// Records a status line of the worker.
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
        known.set_load(sent.load, n_own);
        known.ranks = sent.ranks;
        known.refuses = sent.refuses.map(received_error);
        if let LinkState::Up { status, .. } = &mut known.state {
            *status = sent.health;
        }
    }

    /// The connection, if the worker has the model of this identity.
    pub(super) fn connection(&self, of: &Identity) -> Option<Connection> {
        match &self.known().state {
            LinkState::Up { connection, identity, .. } if identity == of => Some(connection.clone()),
            _ => None,
        }
    }

    /// Whether the worker answers with the model of this identity.
    pub(super) fn status(&self, of: &Identity) -> Status {
        match &self.known().state {
            LinkState::Up { identity, .. } if identity != of => Status::Lost,
            LinkState::Up { connection, .. } if connection.is_lost() => Status::Stalled,
            LinkState::Up { status, .. } => *status,
            LinkState::Down { .. } | LinkState::Ending => Status::Stalled,
        }
    }

    /// Time since the worker with the model of this identity was lost or announced its end; `None` while it
    /// answers.
    pub(super) fn lost_for(&self, of: &Identity) -> Option<Duration> {
        let is_draining = self.is_draining();
        let known = self.known();
        match &known.state {
            LinkState::Up { connection, identity, .. } if identity == of => {
                (is_draining || connection.is_lost()).then_some(Duration::ZERO)
            }
            LinkState::Up { .. } | LinkState::Down { .. } | LinkState::Ending => Some(known.since.elapsed()),
        }
    }

    /// Error with which the worker refuses new requests.
    pub(super) fn refusal(&self) -> Option<ReplicaError> {
        self.known().refuses.clone()
    }

    /// Load in the last status, plus the sequences that this gateway has submitted since.
    pub fn load(&self) -> Load {
        let n_own = self.n_own.load(Ordering::Relaxed);
        let known = self.known();
        let n_waiting = (n_own + known.n_others).saturating_sub(known.load.n_running);
        Load { n_waiting, ..known.load }
    }

    /// Number of sequences that the worker runs for this gateway.
    pub fn n_own(&self) -> usize {
        self.n_own.load(Ordering::Relaxed)
    }

    /// Counts sequences that are submitted to the worker.
    pub(super) fn begin(self: &Arc<Self>, n: usize) -> OwnSequences {
        self.n_own.fetch_add(n, Ordering::Relaxed);
        OwnSequences { link: self.clone(), n }
    }

    /// The probe that is due now, with the connection for it and the reporter.
    pub(super) fn probe_due(&self) -> Option<(Connection, HealthReporter, Probe)> {
        let LinkState::Up { connection, identity, status: Status::Ready } = &self.known().state else {
            return None;
        };
        let reporter = self.reporter_of(identity)?;
        let probe = reporter.probe_due()?;
        Some((connection.clone(), reporter, probe))
    }

    /// Number of steps in the last status.
    pub(super) fn n_steps(&self) -> u64 {
        self.known().load.totals.steps
    }

    /// State of the worker, for operators.
    pub fn report(&self) -> LinkReport {
        let (load, reporter) = (self.load(), self.reporter());
        let health = reporter.as_ref().map(HealthReporter::state);
        let region_and_rtt = reporter.as_ref().map(HealthReporter::region_and_rtt).unwrap_or_default();
        let n_known_blocks = reporter.map_or(0, |reporter| reporter.n_cached_blocks());
        let known = self.known();
        let (state, reason) = match &known.state {
            LinkState::Down { reason } => ("down", Some(reason.clone())),
            LinkState::Ending => {
                (ReplicaErrorKind::Draining.name(), Some("its running requests may finish".to_owned()))
            }
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
        let (role, ranks) = (known.role, known.ranks.clone());
        LinkReport {
            state,
            reason,
            since,
            names,
            fingerprint,
            role,
            load,
            ranks,
            health: health.map(|(state, _)| state),
            n_known_blocks,
            region_and_rtt,
        }
    }
}
