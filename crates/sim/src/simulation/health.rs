//! The gateway's knowledge of replicas beside their answers: reports, probes, connections.

use throng_core::fleet::health::Probe;
use throng_core::fleet::routing::LoadReport;
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::scheduling::{ServiceRate, StepTime};
use throng_core::time::Nanos;

use super::asking::RECONNECT;
use super::live::{Failure, FailureKind};
use super::{Event, MAX_CACHE_EVENTS, Node, World};

/// A probe without an answer has failed after this time.
const PROBE_TIMEOUT: Nanos = Nanos::from_ms(5_000);

impl World<'_> {
    /// Replicas report, and those that are due are probed. Reports are read without the delay of the network.
    pub(super) fn heartbeat(&mut self) {
        let now = self.now;
        let mut machine: Option<ServiceRate> = None;
        for index in 0..self.nodes.len() {
            let uses_blocks = self.uses_blocks;
            let node = &mut self.nodes[index];
            if !node.is_connected || node.cut.is_some() {
                continue;
            }
            let Some(replica) = &mut node.replica else { continue };
            let news = uses_blocks.then(|| {
                let events = replica.core_mut().take_cache_events();
                let follows = std::mem::replace(&mut node.follows_cache, true);
                let changes = (follows && events.len() <= MAX_CACHE_EVENTS).then_some(&events[..]);
                let changes = changes.and_then(CacheNews::of_events);
                changes.unwrap_or_else(|| CacheNews::snapshot(replica.core().cached_names()))
            });
            let stats = replica.core().stats();
            let scheduler = stats.scheduler;
            let step_time = stats.machine.map_or_else(StepTime::default, |machine| machine.step_time);
            let (_, queued_tokens) = replica.intake().queued();
            let report = LoadReport {
                n_queued_tokens: (queued_tokens + scheduler.prefilling_tokens) as u64,
                n_decoding: scheduler.running as u32,
                step_time,
                ..LoadReport::default()
            };
            let has_work = scheduler.running + scheduler.waiting > 0;
            machine = machine.into_iter().chain(stats.machine).reduce(ServiceRate::joined);
            let id = node.id;
            self.dispatch.router.report(id, report, now);
            self.dispatch.board.heartbeat(id, scheduler.counters.steps, has_work, now);
            if let Some(news) = news.filter(|news| !news.is_empty()) {
                self.dispatch.router.follow_cache(id, &news);
            }
        }
        if let Some(gate) = &mut self.gate {
            gate.set_machine(machine);
        }
        self.probe();
        self.look_again();
        self.queue.push(now + self.config.gateway.report_interval, Event::Heartbeat);
    }

    fn probe(&mut self) {
        for probe in self.dispatch.board.probes_due(self.now) {
            let index = self.node_of[&probe.replica];
            let answers = |node: &Node| node.is_connected && node.replica.is_some();
            let round_trip = Nanos(2 * self.config.replicas[index].network.0);
            let (at, answered) = match self.arrival(index, self.now) {
                Some(there) if answers(&self.nodes[index]) => {
                    let back = there + self.config.replicas[index].network;
                    (back, Some(back.since(self.now).max(round_trip)))
                }
                Some(_) => (self.now + round_trip, None),
                None => (self.now + PROBE_TIMEOUT, None),
            };
            self.queue.push(at, Event::Probed(probe, answered));
        }
    }

    pub(super) fn probed(&mut self, probe: Probe, answered: Option<Nanos>) {
        self.dispatch.board.probed(probe, answered, self.now);
        self.look_again();
    }

    /// The gateway loses a connection: requests that run there fail, and the replica drops them a little
    /// later.
    pub(super) fn link_lost(&mut self, index: usize, link: u32) {
        let node = &mut self.nodes[index];
        if node.link != link || !node.is_connected {
            return;
        }
        node.is_connected = false;
        node.link += 1;
        // The next connection begins with the whole content of the cache.
        node.follows_cache = false;
        let id = node.id;
        self.dispatch.board.start_again(id, self.now);
        self.dispatch.router.forget_cache(id);
        let attempts = self.live.iter().filter_map(|(_, live)| live.running());
        let here: Vec<_> = attempts.filter(|running| running.replica == index).map(|one| one.id).collect();
        // The replica has a timeout of its own.
        let known_at = self.now + self.config.gateway.connection_timeout;
        for id in &here {
            self.queue.push(known_at, Event::Abort(*id, index));
        }
        let failure = Failure { kind: FailureKind::Unhealthy, is_retryable: true };
        for id in here {
            self.attempt_failed(id, failure);
        }
    }

    /// The gateway has a connection again: the replica must answer a probe before it gets requests.
    pub(super) fn link_up(&mut self, index: usize, link: u32) {
        let node = &mut self.nodes[index];
        if node.link != link || node.is_connected || node.replica.is_none() || node.cut.is_some() {
            return;
        }
        node.is_connected = true;
        self.dispatch.board.start_again(node.id, self.now);
        self.dispatch.router.forget_cache(node.id);
        self.probe();
    }

    /// Schedules a reconnection to a replica.
    pub(super) fn connect_later(&mut self, index: usize) {
        let link = self.nodes[index].link;
        let at = self.now + Nanos(self.config.replicas[index].network.0 + RECONNECT.0);
        self.queue.push(at, Event::LinkUp { replica: index, link });
    }
}
