//! Reports of one replica's health, load and prefix cache to its dispatcher. Does not collect them.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::health::{Cause, Probe, State};
use throng_core::fleet::routing::{LoadReport, Region, ReplicaId, Role};
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::Nanos;

use super::Dispatcher;

/// Reports about one replica to one dispatcher.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    dispatcher: Arc<Dispatcher>,
    id: ReplicaId,
}

impl HealthReporter {
    /// Creates a reporter for the replica `id`.
    pub fn new(dispatcher: Arc<Dispatcher>, id: ReplicaId) -> Self {
        Self { dispatcher, id }
    }

    /// Resets the replica after its connection was replaced or lost: it must answer a probe, and its cache
    /// counts as unknown.
    pub fn start_again(&self) {
        let (mut inner, now) = self.dispatcher.lock();
        inner.board.start_again(self.id, now);
        inner.router.forget_cache(self.id);
    }

    /// Records a load report, the number of steps so far, and whether the replica has work.
    pub fn report(&self, load: LoadReport, n_steps: u64, has_work: bool) {
        let (mut inner, now) = self.dispatcher.lock();
        inner.router.report(self.id, load, now);
        inner.board.heartbeat(self.id, n_steps, has_work, now);
    }

    /// Records changes of the replica's prefix cache.
    pub fn follow_cache(&self, news: &CacheNews) {
        self.dispatcher.follow_cache(self.id, news);
    }

    /// Records the replica's region.
    pub fn set_region(&self, region: Option<Region>) {
        self.dispatcher.set_region(self.id, region);
    }

    /// Records the replica's role.
    pub fn set_role(&self, role: Role) {
        self.dispatcher.set_role(self.id, role);
    }

    /// Records a round trip to the replica.
    pub fn measured(&self, round_trip: Duration) {
        self.dispatcher.measured(self.id, round_trip);
    }

    /// Region of the replica, and the shortest of the latest round trips to it.
    pub fn region_and_rtt(&self) -> (Option<Region>, Option<Nanos>) {
        self.dispatcher.region_and_rtt(self.id)
    }

    /// The probe that is due now, if any.
    pub fn probe_due(&self) -> Option<Probe> {
        let (mut inner, now) = self.dispatcher.lock();
        inner.board.probe_due(self.id, now)
    }

    /// Records the end of a probe: its duration, or `None` without an answer.
    pub fn probed(&self, probe: Probe, answered: Option<Duration>) {
        self.dispatcher.probed(probe, answered);
    }

    /// State of the replica, and its cause.
    pub fn state(&self) -> (State, Option<Cause>) {
        self.dispatcher.state(self.id)
    }

    /// Number of blocks that the replica is known to have cached.
    pub fn n_cached_blocks(&self) -> usize {
        self.dispatcher.lock().0.router.n_cached_blocks(self.id)
    }
}
