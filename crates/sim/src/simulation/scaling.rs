//! Replicas that start and end as `core`'s autoscaler decides: a new one answers after its start, an unneeded
//! one ends once its requests have.

use throng_core::fleet::autoscale::{AutoscaleConfig, Autoscaler, Observation};
use throng_core::time::Nanos;

use super::{Event, Simulation, World};
use crate::error::{SimError, check_positive};
use crate::fleet::replica::Replica;
use crate::outcome::ScaleSample;

/// Settings of a fleet whose number of replicas changes. The fleet has the maximum number of replicas of the
/// autoscaler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingConfig {
    /// Bounds and targets of the autoscaler.
    pub autoscale: AutoscaleConfig,
    /// Interval between two decisions.
    pub interval: Nanos,
    /// Time from the decision for a replica until it answers.
    pub start_up: Nanos,
    /// Number of replicas at the beginning.
    pub n_initial: u32,
}

impl ScalingConfig {
    /// Checks the settings for a fleet of this many replicas.
    ///
    /// # Errors
    /// Names the first setting that cannot be.
    pub fn check(&self, n_replicas: usize) -> Result<(), SimError> {
        let AutoscaleConfig { min_replicas, max_replicas, .. } = self.autoscale;
        if max_replicas as usize != n_replicas {
            let problem = format!("it is {max_replicas}, and the fleet has {n_replicas} replicas");
            return Err(SimError::setting("max_replicas", problem));
        }
        if !(min_replicas..=max_replicas).contains(&self.n_initial) {
            let problem = format!("{} is not from {min_replicas} to {max_replicas}", self.n_initial);
            return Err(SimError::setting("n_initial", problem));
        }
        check_positive("interval", self.interval.as_secs_f64()).map(|_| ())
    }
}

/// Phase in the life of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Off,
    Starting,
    Serving,
    /// A state in which running requests are answered, and new ones are sent to other replicas.
    Draining,
}

/// The autoscaler and the phases of all replicas.
#[derive(Debug)]
pub(super) struct Scaling {
    config: ScalingConfig,
    autoscaler: Autoscaler,
    phases: Vec<Phase>,
    /// Number of requests that found no replica.
    n_unserved: u64,
}

impl Scaling {
    pub(super) fn new(config: ScalingConfig) -> Self {
        let phase = |index| if index < config.n_initial { Phase::Serving } else { Phase::Off };
        let phases = (0..config.autoscale.max_replicas).map(phase).collect();
        Self { autoscaler: Autoscaler::new(config.autoscale), config, phases, n_unserved: 0 }
    }

    fn count(&self, of: Phase) -> u32 {
        self.phases.iter().filter(|phase| **phase == of).count() as u32
    }
}

impl Simulation {
    /// Lets the autoscaler start and end replicas.
    ///
    /// # Errors
    /// Names the first setting that cannot be.
    pub fn with_scaling(self, scaling: ScalingConfig) -> Result<Self, SimError> {
        scaling.check(self.config.replicas.len())?;
        Ok(Self { scaling: Some(scaling), ..self })
    }
}

impl World<'_> {
    /// Takes the replicas away that do not run at the beginning.
    pub(super) fn begin_scaling(&mut self) {
        let Some(scaling) = &self.scaling else { return };
        let off: Vec<usize> =
            (0..self.nodes.len()).filter(|index| scaling.phases[*index] == Phase::Off).collect();
        for index in off {
            self.hide(index);
            self.nodes[index].replica = None;
        }
        self.queue.push(self.now, Event::Scale);
    }

    /// Notes that a request finds no replica that takes requests.
    pub(super) fn note_unserved(&mut self) {
        let has_any = self.nodes.iter().any(|node| node.is_connected);
        if let Some(scaling) = self.scaling.as_mut().filter(|_| !has_any) {
            scaling.n_unserved += 1;
        }
    }

    /// The autoscaler samples the replicas and decides.
    pub(super) fn scale(&mut self) {
        self.end_drained();
        let seen = self.observation();
        let now = self.now;
        let Some(scaling) = &mut self.scaling else { return };
        let desired = scaling.autoscaler.decide(Some(seen), now).unwrap_or(seen.n_replicas);
        let n_wanted = scaling.count(Phase::Starting) + scaling.count(Phase::Serving);
        let interval = scaling.config.interval;
        self.observer.scaled(&ScaleSample {
            at_ns: now.as_ns(),
            n_desired: desired,
            n_serving: seen.n_replicas,
            n_paid: self.nodes.len() as u32 - scaling.count(Phase::Off),
            n_running: seen.n_running,
            n_waiting: seen.n_waiting,
            n_unserved: seen.n_unserved,
        });
        (n_wanted..desired).for_each(|_| self.start_one());
        (desired..n_wanted).for_each(|_| self.stop_one());
        self.queue.push(now + interval, Event::Scale);
    }

    fn observation(&self) -> Observation {
        let mut seen = Observation {
            n_unserved: self.scaling.as_ref().map_or(0, |scaling| scaling.n_unserved),
            predicted_ttft: self.gate.as_ref().map_or(Nanos(0), |gate| gate.predicted_wait()),
            ..Observation::default()
        };
        let (mut n_used, mut n_blocks) = (0, 0);
        for node in self.nodes.iter().filter(|node| node.is_connected) {
            let Some(replica) = &node.replica else { continue };
            let stats = replica.core().scheduler().stats();
            seen.n_replicas += 1;
            seen.n_running += stats.running as u64;
            seen.n_waiting += stats.waiting as u64;
            n_used += stats.used_blocks.min(stats.total_blocks);
            n_blocks += stats.total_blocks;
        }
        seen.kv_use = n_used as f64 / n_blocks.max(1) as f64;
        seen
    }

    /// Adds a replica: a draining one serves again at once, else a new one starts.
    fn start_one(&mut self) {
        let Some(scaling) = &mut self.scaling else { return };
        let position = |phase| scaling.phases.iter().position(|found| *found == phase);
        if let Some(index) = position(Phase::Draining) {
            scaling.phases[index] = Phase::Serving;
            return self.show(index);
        }
        let Some(index) = position(Phase::Off) else { return };
        scaling.phases[index] = Phase::Starting;
        let at = self.now + scaling.config.start_up;
        self.queue.push(at, Event::Started(index));
    }

    /// Removes a replica: one that still starts, else the one with the fewest requests.
    fn stop_one(&mut self) {
        let load = |index: usize| {
            let replica = self.nodes[index].replica.as_ref();
            replica.map_or(0, |replica| {
                let stats = replica.core().scheduler().stats();
                stats.running + stats.waiting
            })
        };
        let Some(scaling) = &self.scaling else { return };
        let all = |phase| {
            let is_in = move |index: &usize| scaling.phases[*index] == phase;
            (0..scaling.phases.len()).filter(is_in)
        };
        let starting = all(Phase::Starting).next_back();
        let serving = all(Phase::Serving).min_by_key(|index| (load(*index), std::cmp::Reverse(*index)));
        let Some(scaling) = &mut self.scaling else { return };
        if let Some(index) = starting {
            scaling.phases[index] = Phase::Off;
        } else if let Some(index) = serving {
            scaling.phases[index] = Phase::Draining;
            self.hide(index);
        }
    }

    /// A replica that was started answers from now on, unless it is no longer needed.
    pub(super) fn started(&mut self, index: usize) {
        match self.scaling.as_mut().map(|scaling| &mut scaling.phases[index]) {
            Some(phase) if *phase == Phase::Starting => *phase = Phase::Serving,
            _ => return,
        }
        let mut replica =
            Replica::new(self.config.replicas[index].clone(), self.has_whole_batches, self.rng.fork());
        replica.begin_at(self.now);
        let node = &mut self.nodes[index];
        node.process += 1;
        node.tick_at = None;
        node.replica = Some(replica);
        self.show(index);
    }

    /// Ends draining replicas that have no requests left.
    fn end_drained(&mut self) {
        let Some(scaling) = &mut self.scaling else { return };
        for (index, phase) in scaling.phases.iter_mut().enumerate() {
            let node = &mut self.nodes[index];
            let is_idle = node.replica.as_ref().is_none_or(|replica| replica.core().scheduler().is_idle());
            if *phase == Phase::Draining && is_idle && self.dispatch.n_running(node.id) == 0 {
                *phase = Phase::Off;
                node.end_process();
            }
        }
    }

    /// Gives a replica no new requests.
    fn hide(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.is_connected = false;
        self.dispatch.remove(node.id);
    }

    /// Sends requests to a replica. It answers, so that it needs no probe.
    fn show(&mut self, index: usize) {
        let id = self.dispatch.add(&format!("replica-{index}"), self.now);
        self.dispatch.board.be_ready(id, self.now);
        self.node_of.insert(id, index);
        let node = &mut self.nodes[index];
        node.id = id;
        node.is_connected = true;
        // The router has forgotten what it knew of the cache.
        node.follows_cache = false;
        self.look_again();
    }
}
