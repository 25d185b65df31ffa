//! Where the attempts of a model's requests go: the router, the health and the retry budget of `throng_core`
//! behind one lock, with a clock. Does not know what a replica is nor how it is asked.

mod health_reporter;
mod placement;
mod region_audit;
mod settings;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::block_hash::BlockKey;
use throng_core::block_pool::CacheNews;
use throng_core::health::{Board, Cause, HealthConfig, Probe, RetryBudget, State};
use throng_core::routing::{LoadReport, PrefixIndex, Query, Region, ReplicaId, Residency, Router};
use throng_core::time::{Nanos, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use health_reporter::HealthReporter;
pub use placement::Placement;
pub use region_audit::RegionBound;
pub use settings::RoutingSettings;

/// Retries that a model may make before it has seen requests, and most that it may save up.
const RESERVED_RETRIES: u32 = 10;
const MAX_SAVED_RETRIES: u32 = 100;

/// Longest time between two looks of a request that waits for a replica.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Most block names that are kept of what one replica has cached.
const MAX_BLOCKS: usize = 1 << 16;

/// Distributes the attempts of one model's requests.
#[derive(Debug)]
pub struct Dispatcher {
    inner: Mutex<Inner>,
    residency: Residency,
    has_region: bool,
    origin: Instant,
    /// Notified when a replica has answered a probe.
    answered: Notify,
}

#[derive(Debug)]
struct Inner {
    router: Router,
    board: Board,
    budget: RetryBudget,
    /// Attempts that run, by replica.
    n_running: BTreeMap<ReplicaId, usize>,
}

/// Facts of a request that a choice depends on.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Tokens of the prompt, with those already generated.
    pub n_tokens: u32,
    /// The names of its full blocks, in their order.
    pub blocks: &'a [BlockKey],
    /// The name of the only replica that the client wants.
    pub pinned: Option<&'a str>,
    /// The regions that a residency rule binds it to.
    pub bound: Option<&'a dyn RegionBound>,
    /// Replicas that are no longer asked.
    pub tried: &'a [ReplicaId],
}

impl Dispatcher {
    /// Creates a dispatcher without replicas.
    pub fn new(routing: &RoutingSettings, health: HealthConfig) -> Arc<Self> {
        let inner = Inner {
            router: Router::new(routing.policy, fastrand::u64(..)).at(routing.region.clone()),
            board: Board::new(health),
            budget: RetryBudget::new(RESERVED_RETRIES, MAX_SAVED_RETRIES),
            n_running: BTreeMap::new(),
        };
        let (residency, has_region) = (routing.residency.clone(), routing.region.is_some());
        let (origin, answered) = (Instant::now(), Notify::new());
        Arc::new(Self { inner: Mutex::new(inner), residency, has_region, origin, answered })
    }

    /// A new replica, which is starting.
    pub fn add(&self, name: &str) -> ReplicaId {
        let (mut inner, now) = self.lock();
        let id = inner.router.add(name, PrefixIndex::Inferred, MAX_BLOCKS);
        inner.board.add(id, now);
        id
    }

    /// A new replica that needs no probe.
    pub fn add_ready(&self, name: &str) -> ReplicaId {
        let id = self.add(name);
        let (mut inner, now) = self.lock();
        inner.board.be_ready(id, now);
        id
    }

    /// Notes the region of a replica.
    pub fn set_region(&self, id: ReplicaId, region: Option<Region>) {
        self.lock().0.router.set_region(id, region);
    }

    /// Notes a round trip to a replica, measured with a request that costs it no work.
    pub fn measured(&self, id: ReplicaId, round_trip: Duration) {
        self.lock().0.router.measured(id, round_trip.into());
    }

    /// The region of a replica, and the shortest of the latest round trips to it.
    pub fn region_and_rtt(&self, id: ReplicaId) -> (Option<Region>, Option<Nanos>) {
        self.lock().0.router.place(id)
    }

    /// Whether this process knows in which region it is.
    pub fn has_region(&self) -> bool {
        self.has_region
    }

    /// The only regions that requests of this organisation may go to, where there is a rule.
    pub fn permitted_regions(&self, organisation: Option<&str>) -> Option<Arc<[Region]>> {
        self.residency.regions(organisation)
    }

    /// Whether none of the replicas that a request could go to, however they are, is in one of these regions.
    pub fn excludes_all(&self, regions: &[Region], pinned: Option<&str>) -> bool {
        self.lock().0.router.excludes_all(regions, pinned)
    }

    /// A replica gets no further requests until it is removed.
    pub fn drain(&self, id: ReplicaId) {
        self.lock().0.board.drain(id);
    }

    /// A replica that gets no further requests. What runs there gives its load back as ever.
    pub fn remove(&self, id: ReplicaId) {
        let (mut inner, _) = self.lock();
        inner.router.remove(id);
        inner.board.remove(id);
    }

    /// Notes a replica's report of its load.
    pub fn report(&self, id: ReplicaId, load: LoadReport) {
        let (mut inner, now) = self.lock();
        inner.router.report(id, load, now);
    }

    /// Notes a replica's report of its prefix cache.
    pub fn follow_cache(&self, id: ReplicaId, news: &CacheNews) {
        self.lock().0.router.follow_cache(id, news);
    }

    /// Whether choices depend on what replicas have cached.
    pub fn uses_blocks(&self) -> bool {
        self.lock().0.router.uses_blocks()
    }

    /// A request has come: its first attempt is paid for.
    pub fn request(&self) {
        self.lock().0.budget.request();
    }

    /// Whether one more attempt may be made; it is paid for then.
    pub fn may_retry(&self) -> bool {
        self.lock().0.budget.retry()
    }

    /// Replica of the next attempt; `None` where nothing may be asked. One that is repeated goes to a replica
    /// that is fit for requests, if there is any, also while most are not.
    pub fn place(self: &Arc<Self>, wanted: &Wanted<'_>) -> Option<Placement> {
        let (ready, eligible) = {
            let board = &self.lock().0.board;
            (board.ready(), board.eligible())
        };
        let first = if wanted.tried.is_empty() { None } else { self.place_among(wanted, &ready) };
        first.or_else(|| self.place_among(wanted, &eligible))
    }

    /// Replica of the next attempt, of those of which `answering` answer: one that is fit for requests, else
    /// any of them.
    pub fn place_answering(
        self: &Arc<Self>,
        wanted: &Wanted<'_>,
        answering: &[ReplicaId],
    ) -> Option<Placement> {
        let mut eligible = self.lock().0.board.eligible();
        eligible.retain(|id| answering.contains(id));
        self.place_among(wanted, &eligible).or_else(|| self.place_among(wanted, answering))
    }

    /// Replica of the next attempt among these, whatever is known of their health.
    pub fn place_among(self: &Arc<Self>, wanted: &Wanted<'_>, eligible: &[ReplicaId]) -> Option<Placement> {
        let eligible: Vec<_> = eligible.iter().copied().filter(|id| !wanted.tried.contains(id)).collect();
        let (mut inner, now) = self.lock();
        let router = &mut inner.router;
        let pinned = match wanted.pinned {
            // A name that no replica has leads nowhere.
            Some(name) => Some(router.named(name)?),
            None => None,
        };
        let Wanted { n_tokens, blocks, bound, .. } = *wanted;
        let regions = bound.map(|bound| bound.regions());
        let query = Query { n_tokens, blocks, pinned, eligible: &eligible, regions };
        let choice = router.choose(&query, now)?;
        let ticket = router.start(&choice, &query);
        *inner.n_running.entry(choice.replica).or_default() += 1;
        let was_ready = inner.board.state(choice.replica) == Some(State::Ready);
        let place = bound.map(|bound| {
            let name = inner.router.name(choice.replica).unwrap_or_default().to_owned();
            (bound, name, inner.router.place(choice.replica).0)
        });
        drop(inner);
        if let Some((bound, name, region)) = place {
            bound.placed(&name, region.as_ref());
        }
        Some(Placement::new(self.clone(), choice, ticket, was_ready))
    }

    /// The probes that must be made now.
    pub fn probes_due(&self) -> Vec<Probe> {
        let (mut inner, now) = self.lock();
        inner.board.probes_due(now)
    }

    /// A probe has ended.
    pub fn probed(&self, probe: Probe, answered: Option<Duration>) {
        let (mut inner, now) = self.lock();
        inner.board.probed(probe, answered.map(Nanos::from), now);
        drop(inner);
        if answered.is_some() {
            self.answered.notify_waiters();
        }
    }

    /// Waits until a replica may have become ready.
    pub async fn may_have_changed(&self) {
        let _ = tokio::time::timeout(RECHECK_INTERVAL, self.answered.notified()).await;
    }

    /// The replicas that are fit for requests.
    pub fn ready(&self) -> Vec<ReplicaId> {
        self.lock().0.board.ready()
    }

    /// State of a replica, and its cause.
    pub fn state(&self, id: ReplicaId) -> (State, Option<Cause>) {
        let (inner, _) = self.lock();
        (inner.board.state(id).unwrap_or(State::Starting), inner.board.cause(id))
    }

    /// Number of attempts that run at a replica.
    pub fn n_running(&self, id: ReplicaId) -> usize {
        self.lock().0.n_running.get(&id).copied().unwrap_or(0)
    }

    /// Whether anything may be asked.
    pub fn is_ready(&self) -> bool {
        !self.lock().0.board.eligible().is_empty()
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, Timestamp) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the time never goes back.
        (inner, Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0))
    }
}
