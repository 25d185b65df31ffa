//! Routing of the attempts of a model's requests: the decisions of `throng_core::fleet::Dispatch` behind a
//! lock, with a clock. Does not know replicas and their protocols.

mod health_reporter;
mod placement;
mod region_audit;
mod settings;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::fleet::health::{Cause, HealthConfig, Probe, State};
use throng_core::fleet::routing::{LoadReport, Region, ReplicaId, Residency, Role, Router};
use throng_core::fleet::{Attempt, Demand, Dispatch};
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::{Nanos, Timestamp};
use throng_http::awake::AwakeSleep;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use health_reporter::HealthReporter;
pub use placement::Placement;
pub use region_audit::RegionBound;
pub use settings::RoutingSettings;

/// Maximum interval at which a request that waits for a replica checks again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Distributes the attempts of one model's requests.
#[derive(Debug)]
pub struct Dispatcher {
    inner: Mutex<Dispatch>,
    residency: Residency,
    has_region: bool,
    origin: Instant,
    /// Notified when a probe has ended.
    probe_ended: Notify,
}

/// Facts about a request that its routing depends on.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Number of tokens in the prompt and in the output so far.
    pub n_tokens: u32,
    /// Hashes of the full blocks, in order.
    pub blocks: &'a [BlockKey],
    /// Name of the requests that begin alike, as the client says.
    pub session: Option<BlockKey>,
    /// Name of the only replica that the client accepts.
    pub pinned: Option<&'a str>,
    /// Regions that a residency rule binds the request to.
    pub bound: Option<&'a dyn RegionBound>,
    /// Replicas that must not be tried again.
    pub tried: &'a [ReplicaId],
}

impl Dispatcher {
    /// Creates a dispatcher without replicas.
    pub fn new(routing: &RoutingSettings, health: HealthConfig) -> Arc<Self> {
        let router = Router::new(routing.policy, fastrand::u64(..)).at(routing.region.clone());
        let inner = Dispatch::new(router, health);
        let (residency, has_region) = (routing.residency.clone(), routing.region.is_some());
        let (origin, probe_ended) = (Instant::now(), Notify::new());
        Arc::new(Self { inner: Mutex::new(inner), residency, has_region, origin, probe_ended })
    }

    /// Adds a replica in the state starting.
    pub fn add(&self, name: &str) -> ReplicaId {
        let (mut inner, now) = self.lock();
        inner.add(name, now)
    }

    /// Adds a replica that needs no probe.
    pub fn add_ready(&self, name: &str) -> ReplicaId {
        let id = self.add(name);
        let (mut inner, now) = self.lock();
        inner.board.be_ready(id, now);
        id
    }

    /// Records the region of a replica.
    pub fn set_region(&self, id: ReplicaId, region: Option<Region>) {
        self.lock().0.router.set_region(id, region);
    }

    /// Records the role of a replica.
    pub fn set_role(&self, id: ReplicaId, role: Role) {
        self.lock().0.router.set_role(id, role);
    }

    /// Records a round trip to a replica, measured with a request that takes no computation.
    pub fn measured(&self, id: ReplicaId, round_trip: Duration) {
        self.lock().0.router.measured(id, round_trip.into());
    }

    /// The region of a replica, and the shortest of the latest round trips to it.
    pub fn region_and_rtt(&self, id: ReplicaId) -> (Option<Region>, Option<Nanos>) {
        self.lock().0.router.place(id)
    }

    /// Whether this process has a configured region.
    pub fn has_region(&self) -> bool {
        self.has_region
    }

    /// Regions that requests of this organisation are restricted to; `None` without a rule.
    pub fn permitted_regions(&self, organisation: Option<&str>) -> Option<Arc<[Region]>> {
        self.residency.regions(organisation)
    }

    /// Whether no replica that the request could go to, healthy or not, is in one of these regions.
    pub fn excludes_all(&self, regions: &[Region], pinned: Option<&str>) -> bool {
        self.lock().0.router.excludes_all(regions, pinned)
    }

    /// Sends no further requests to a replica until it is removed.
    pub fn drain(&self, id: ReplicaId) {
        self.lock().0.board.drain(id);
    }

    /// Removes a replica. Attempts that still run there release their load when they end.
    pub fn remove(&self, id: ReplicaId) {
        self.lock().0.remove(id);
    }

    /// Records a replica's load report.
    pub fn report(&self, id: ReplicaId, load: LoadReport) {
        let (mut inner, now) = self.lock();
        inner.router.report(id, load, now);
    }

    /// Records changes of a replica's prefix cache.
    pub fn follow_cache(&self, id: ReplicaId, news: &CacheNews) {
        self.lock().0.router.follow_cache(id, news);
    }

    /// Whether routing depends on the replicas' prefix caches.
    pub fn uses_blocks(&self) -> bool {
        self.lock().0.router.uses_blocks()
    }

    /// Counts a new request, which adds to the retry budget.
    pub fn request(&self) {
        self.lock().0.request();
    }

    /// Whether the retry budget allows another attempt; if so, charges it.
    pub fn may_retry(&self) -> bool {
        self.lock().0.may_retry()
    }

    /// Chooses the replica for the next attempt; `None` if no replica is eligible. A repeated attempt goes
    /// to a ready replica, if there is any, even while most are not ready.
    pub fn place(self: &Arc<Self>, wanted: &Wanted<'_>) -> Option<Placement> {
        self.begin(wanted, |dispatch, demand, now| dispatch.place(demand, now))
    }

    /// Chooses the replica for the next attempt among those in `answering`: a ready one, else any of them.
    pub fn place_answering(
        self: &Arc<Self>,
        wanted: &Wanted<'_>,
        answering: &[ReplicaId],
    ) -> Option<Placement> {
        self.begin(wanted, |dispatch, demand, now| dispatch.place_answering(demand, answering, now))
    }

    /// Chooses the replica for the next attempt among `eligible`, fit or not.
    pub fn place_among(self: &Arc<Self>, wanted: &Wanted<'_>, eligible: &[ReplicaId]) -> Option<Placement> {
        self.begin(wanted, |dispatch, demand, now| dispatch.place_among(demand, eligible, now))
    }

    fn begin(
        self: &Arc<Self>,
        wanted: &Wanted<'_>,
        choose: impl FnOnce(&mut Dispatch, &Demand<'_>, Timestamp) -> Option<Attempt>,
    ) -> Option<Placement> {
        let Wanted { n_tokens, blocks, session, pinned, bound, tried } = *wanted;
        let regions = bound.map(|bound| bound.regions());
        let (mut inner, now) = self.lock();
        let demand = Demand { n_tokens, blocks, session, pinned, regions, tried };
        let attempt = choose(&mut inner, &demand, now)?;
        let replica = attempt.choice.replica;
        let place = bound.map(|bound| {
            let name = inner.router.name(replica).unwrap_or_default().to_owned();
            (bound, name, inner.router.place(replica).0)
        });
        drop(inner);
        if let Some((bound, name, region)) = place {
            bound.placed(&name, region.as_ref());
        }
        Some(Placement::new(self.clone(), attempt))
    }

    /// The probes that are due now.
    pub fn probes_due(&self) -> Vec<Probe> {
        let (mut inner, now) = self.lock();
        inner.board.probes_due(now)
    }

    /// Records the end of a probe.
    pub fn probed(&self, probe: Probe, answered: Option<Duration>) {
        let (mut inner, now) = self.lock();
        inner.board.probed(probe, answered.map(Nanos::from), now);
        drop(inner);
        self.probe_ended.notify_waiters();
    }

    /// Records that a replica failed outside of any attempt.
    pub fn failed(&self, id: ReplicaId) {
        let (mut inner, now) = self.lock();
        inner.board.fail(id, now);
    }

    /// Waits, for at most `patience`, while no replica is eligible but the first probe of one is running or
    /// due.
    pub async fn await_first_probe(&self, patience: Duration) {
        let mut limit = AwakeSleep::new(patience);
        while self.is_about_to_start() {
            tokio::select! {
                () = &mut limit => break,
                () = self.may_have_changed() => {}
            }
        }
    }

    fn is_about_to_start(&self) -> bool {
        let (inner, now) = self.lock();
        inner.is_about_to_start(now)
    }

    /// Waits until a replica may have become ready.
    pub async fn may_have_changed(&self) {
        let _ = tokio::time::timeout(RECHECK_INTERVAL, self.probe_ended.notified()).await;
    }

    /// The replicas that are ready for requests.
    pub fn ready(&self) -> Vec<ReplicaId> {
        self.lock().0.board.ready()
    }

    /// State of a replica, and its cause.
    pub fn state(&self, id: ReplicaId) -> (State, Option<Cause>) {
        let (inner, _) = self.lock();
        (inner.board.state(id).unwrap_or(State::Starting), inner.board.cause(id))
    }

    /// Number of blocks at the beginning of a prompt that a replica is known to have.
    pub fn n_held(&self, id: ReplicaId, blocks: &[BlockKey]) -> usize {
        self.lock().0.router.n_held(id, blocks)
    }

    /// Number of attempts running at a replica.
    pub fn n_running(&self, id: ReplicaId) -> usize {
        self.lock().0.n_running(id)
    }

    /// Whether any replica is eligible.
    pub fn is_ready(&self) -> bool {
        !self.lock().0.board.eligible().is_empty()
    }

    fn lock(&self) -> (MutexGuard<'_, Dispatch>, Timestamp) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that time never goes backwards.
        (inner, Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0))
    }
}
