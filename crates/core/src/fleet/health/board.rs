//! The health of a model's replicas: which get requests, are probed, ejected or ready again. It is judged
//! by the outcomes of attempts, by delays compared with the other replicas, by step counters, and by
//! probes, which the caller runs. Does not know connections or the content of a probe.
//!
//! Works like Envoy's outlier detection and panic threshold, with one circuit breaker a replica: an ejected
//! replica is an open circuit, its probe the one request of the half-open state.

use std::collections::BTreeMap;

use super::config::HealthConfig;
use super::record::{Cause, Record, State};
use crate::fleet::routing::ReplicaId;
use crate::time::{Nanos, Timestamp};

/// The health of all replicas of a model.
#[derive(Debug)]
pub struct Board {
    config: HealthConfig,
    replicas: BTreeMap<ReplicaId, Record>,
    n_ejections: u64,
    n_probes: u64,
}

/// A probe that must be made. Its result counts only while its replica keeps the state for which it was
/// asked: a probe is void once the replica was ejected, drained or connected anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    /// Replica to probe.
    pub replica: ReplicaId,
    number: u64,
}

impl Board {
    /// Creates a board without replicas.
    pub fn new(config: HealthConfig) -> Self {
        Self { config, replicas: BTreeMap::new(), n_ejections: 0, n_probes: 0 }
    }

    /// Adds a replica, which is starting.
    pub fn add(&mut self, id: ReplicaId, now: Timestamp) {
        self.replicas.insert(id, Record::new(now));
    }

    /// Removes a replica.
    pub fn remove(&mut self, id: ReplicaId) {
        self.replicas.remove(&id);
    }

    /// Notes that the connection of a replica was lost or made anew: it must answer a probe before it gets
    /// requests.
    pub fn start_again(&mut self, id: ReplicaId, now: Timestamp) {
        if let Some(record) = self.replicas.get_mut(&id) {
            record.start_again(now);
        }
    }

    /// Stops new requests to a replica; [`Self::start_again`] ends that.
    pub fn drain(&mut self, id: ReplicaId) {
        if let Some(record) = self.replicas.get_mut(&id) {
            record.drain();
        }
    }

    /// State of a replica; `None` if it is unknown.
    pub fn state(&self, id: ReplicaId) -> Option<State> {
        self.replicas.get(&id).map(|record| record.state)
    }

    /// Reason why a replica is ejected.
    pub fn cause(&self, id: ReplicaId) -> Option<Cause> {
        self.replicas.get(&id).and_then(|record| record.cause)
    }

    /// Number of ejections of replicas.
    pub fn n_ejections(&self) -> u64 {
        self.n_ejections
    }

    /// Whether too many replicas are ejected for the others to carry the load: then all get requests.
    pub fn is_panicking(&self) -> bool {
        let n_ejected = self.count(State::Ejected);
        let n_judged = n_ejected + self.count(State::Ready);
        n_ejected > 0 && n_ejected * 100 > n_judged * u64::from(self.config.panic_percent)
    }

    /// The ready replicas.
    pub fn ready(&self) -> Vec<ReplicaId> {
        let ready = self.replicas.iter().filter(|(_, record)| record.state == State::Ready);
        ready.map(|(id, _)| *id).collect()
    }

    /// Replicas that may get requests: the ready ones, and ejected ones while most are ejected.
    pub fn eligible(&self) -> Vec<ReplicaId> {
        let is_panicking = self.is_panicking();
        let may = |state| state == State::Ready || is_panicking && state == State::Ejected;
        self.replicas.iter().filter(|(_, record)| may(record.state)).map(|(id, _)| *id).collect()
    }

    /// Whether a new replica may soon become ready: the probe that it must answer runs or is due.
    pub fn is_about_to_start(&self, now: Timestamp) -> bool {
        let is_probed = |record: &Record| record.probe.is_some() || record.probe_at <= now;
        self.replicas.values().any(|record| record.state == State::Starting && is_probed(record))
    }

    /// Notes the first token of an attempt, with its delay if that can be compared with other replicas.
    pub fn succeed(&mut self, id: ReplicaId, delay: Option<Nanos>, now: Timestamp) {
        let Some(record) = self.replicas.get_mut(&id) else { return };
        record.succeed(delay, &self.config, now);
        if record.state == State::Ready && self.is_slow(id) {
            self.eject(id, Cause::Slow, now);
        }
    }

    /// Notes that an attempt failed for a reason that is the replica's.
    pub fn fail(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(record) = self.replicas.get_mut(&id) else { return };
        let cause = record.fail(&self.config, now);
        if let (State::Ready, Some(cause)) = (record.state, cause) {
            self.eject(id, cause, now);
        }
    }

    /// Notes a replica's step counter, and whether it has work.
    pub fn heartbeat(&mut self, id: ReplicaId, n_steps: u64, has_work: bool, now: Timestamp) {
        let Some(record) = self.replicas.get_mut(&id) else { return };
        let is_stalled = record.is_stalled(n_steps, has_work, &self.config, now);
        if is_stalled && record.state == State::Ready {
            self.eject(id, Cause::Stalled, now);
        }
    }

    /// The probes that must be made now. A replica has one at a time, until [`Self::probed`] is called with
    /// its result.
    pub fn probes_due(&mut self, now: Timestamp) -> Vec<Probe> {
        let ids: Vec<_> = self.replicas.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.probe_due(id, now)).collect()
    }

    /// The probe of one replica, if it must be made now.
    pub fn probe_due(&mut self, id: ReplicaId, now: Timestamp) -> Option<Probe> {
        let record = self.replicas.get_mut(&id)?;
        if record.state == State::Draining || record.probe.is_some() || record.probe_at > now {
            return None;
        }
        self.n_probes += 1;
        record.probe = Some(self.n_probes);
        Some(Probe { replica: id, number: self.n_probes })
    }

    /// Ends a probe with the delay of its answer, or `None` without one. A void probe is ignored.
    pub fn probed(&mut self, probe: Probe, answered: Option<Nanos>, now: Timestamp) {
        let id = probe.replica;
        let is_slow = answered.is_some_and(|delay| self.is_slow_to_probe(id, delay));
        let Some(record) = self.replicas.get_mut(&id).filter(|record| record.probe == Some(probe.number))
        else {
            return;
        };
        record.probe = None;
        record.probe_delay = answered.or(record.probe_delay);
        match (record.state, answered) {
            (State::Draining, _) => {}
            (State::Ready, Some(_)) => record.probe_at = now + self.config.probe_interval,
            (State::Ejected, Some(_)) if record.cause == Some(Cause::Slow) && is_slow => {
                self.eject(id, Cause::Slow, now);
            }
            (State::Starting | State::Ejected, Some(_)) => record.be_ready(&self.config, now),
            (State::Starting, None) => record.probe_at = now + self.config.ejection,
            (State::Ready, None) => self.eject(id, Cause::FailedProbe, now),
            // The first cause stays: it is what an operator looks for, and a slow replica must still answer
            // a probe in time.
            (State::Ejected, None) => {
                let cause = record.cause.unwrap_or(Cause::FailedProbe);
                self.eject(id, cause, now);
            }
        }
    }

    /// Makes a replica ready without a probe, since it is known to answer.
    pub fn be_ready(&mut self, id: ReplicaId, now: Timestamp) {
        if let Some(record) = self.replicas.get_mut(&id) {
            record.be_ready(&self.config, now);
        }
    }

    fn count(&self, state: State) -> u64 {
        self.replicas.values().filter(|record| record.state == state).count() as u64
    }

    fn eject(&mut self, id: ReplicaId, cause: Cause, now: Timestamp) {
        let Some(record) = self.replicas.get_mut(&id) else { return };
        record.eject(cause, &self.config, now);
        self.n_ejections += 1;
    }

    /// Whether the delay of a probe shows that a slow replica is still slow, compared with the median of
    /// the other ready replicas' probes.
    fn is_slow_to_probe(&self, id: ReplicaId, delay: Nanos) -> bool {
        let others =
            self.replicas.iter().filter(|(other, record)| **other != id && record.state == State::Ready);
        let mut delays: Vec<u64> = others.filter_map(|(_, record)| Some(record.probe_delay?.0)).collect();
        delays.sort_unstable();
        let Some(median) = delays.get(delays.len() / 2) else { return false };
        let most = median.saturating_mul(u64::from(self.config.max_slowness));
        delay.0 > most.max(median.saturating_add(self.config.min_probe_excess.0))
    }

    /// Whether a replica is slow, compared with the median of the other ready replicas, of which at least
    /// two must have a mean delay.
    fn is_slow(&self, id: ReplicaId) -> bool {
        let min = self.config.min_outcomes;
        let Some(own) = self.replicas.get(&id).and_then(|record| record.mean_delay(min)) else {
            return false;
        };
        let others =
            self.replicas.iter().filter(|(other, record)| **other != id && record.state == State::Ready);
        let mut delays: Vec<f64> = others.filter_map(|(_, record)| record.mean_delay(min)).collect();
        if delays.len() < 2 {
            return false;
        }
        delays.sort_by(f64::total_cmp);
        let median = delays[delays.len() / 2];
        own > median * f64::from(self.config.max_slowness) && own - median > self.config.min_excess.0 as f64
    }
}
