//! Reports of one replica's health, load and cache to its dispatcher. Does not know how these are learned.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::health::{Cause, Probe, State};
use throng_core::fleet::routing::{LoadReport, Region, ReplicaId};
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::Nanos;

use super::Dispatcher;

/// One replica of one dispatcher.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    dispatcher: Arc<Dispatcher>,
    id: ReplicaId,
}

impl HealthReporter {
    /// The replica of this number.
    pub fn new(dispatcher: Arc<Dispatcher>, id: ReplicaId) -> Self {
        Self { dispatcher, id }
    }

    /// There is a new connection to it, or none any more: it must answer a probe, and nothing is known of its
    /// cache.
    pub fn start_again(&self) {
        let (mut inner, now) = self.dispatcher.lock();
        inner.board.start_again(self.id, now);
        inner.router.forget_cache(self.id);
    }

    /// Notes its report: load, number of steps, and whether it has anything to do.
    pub fn report(&self, load: LoadReport, n_steps: u64, has_work: bool) {
        let (mut inner, now) = self.dispatcher.lock();
        inner.router.report(self.id, load, now);
        inner.board.heartbeat(self.id, n_steps, has_work, now);
    }

    /// Notes its report of its prefix cache.
    pub fn follow_cache(&self, news: &CacheNews) {
        self.dispatcher.follow_cache(self.id, news);
    }

    /// Notes its region.
    pub fn set_region(&self, region: Option<Region>) {
        self.dispatcher.set_region(self.id, region);
    }

    /// Notes a round trip to it.
    pub fn measured(&self, round_trip: Duration) {
        self.dispatcher.measured(self.id, round_trip);
    }

    /// Its region, and the shortest of the latest round trips to it.
    pub fn region_and_rtt(&self) -> (Option<Region>, Option<Nanos>) {
        self.dispatcher.region_and_rtt(self.id)
    }

    /// Whether it must be probed now.
    pub fn probe_due(&self) -> Option<Probe> {
        let (mut inner, now) = self.dispatcher.lock();
        inner.board.probe_due(self.id, now)
    }

    /// A probe has ended: it was answered after so long, or not.
    pub fn probed(&self, probe: Probe, answered: Option<Duration>) {
        self.dispatcher.probed(probe, answered);
    }

    /// Its state, and the cause.
    pub fn state(&self) -> (State, Option<Cause>) {
        self.dispatcher.state(self.id)
    }

    /// Blocks that it is known to have cached.
    pub fn n_cached_blocks(&self) -> usize {
        self.dispatcher.lock().0.router.n_cached_blocks(self.id)
    }
}
