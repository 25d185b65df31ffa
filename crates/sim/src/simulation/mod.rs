//! A run: clients, gateway, network and replicas under one virtual clock.
//!
//! The gateway's decisions are made here by `core`'s own structs, in the order of the product: limits, the
//! overload gate, dispatch with router and health, failover. The rest of the modules moves messages between
//! them.
//!
//! Simplifications: one gateway, one continuation a request, constant delays of the network, reports of
//! replicas without delay, readers that keep up. Constraints, adapters, regions, the response cache and
//! models on demand are not simulated.

mod asking;
mod clients;
mod entrance;
mod faults;
mod health;
mod live;
mod sabotage;
mod scaling;
mod stage;
mod steps;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use throng_core::engine::{Epoch, PlainToken};
use throng_core::fleet::Dispatch;
use throng_core::fleet::health::Probe;
use throng_core::fleet::limits::{LimitState, Limits, Scope};
use throng_core::fleet::overload::Gate;
use throng_core::fleet::routing::{ReplicaId, Router};
use throng_core::request::{FinishReason, RequestId, SamplingParams, TenantId};
use throng_core::scheduling::scheduler::Counters;
use throng_core::time::{Nanos, Timestamp};

use crate::error::SimError;
use crate::event_queue::EventQueue;
use crate::fleet::replica::Replica;
use crate::fleet::{Fault, FleetConfig};
use crate::outcome::{Observer, ReplicaSample, Totals};
use crate::workload::{TimedRequest, Workload};
use live::{Failure, Key, Slab};
use scaling::Scaling;
use stage::Workers;

#[doc(hidden)]
pub use sabotage::Sabotage;
pub use scaling::ScalingConfig;

/// Maximum number of tenants whose limits are counted.
const MAX_SCOPES: usize = 1 << 20;
/// Maximum changes of a cache between two reports, as in a worker. Behind these, a gateway gets all content.
const MAX_CACHE_EVENTS: usize = 1 << 16;

/// A run of a workload on a fleet with faults.
#[derive(Debug)]
pub struct Simulation {
    config: FleetConfig,
    faults: Vec<Fault>,
    scaling: Option<ScalingConfig>,
    workload: Box<dyn Workload>,
    seed: u64,
    end: Option<Timestamp>,
    sabotage: Option<Sabotage>,
    has_whole_batches: bool,
}

impl Simulation {
    /// A run of a workload on a fleet. Equal arguments give equal runs.
    ///
    /// # Errors
    /// When the fleet has a setting that none can have.
    pub fn new(config: FleetConfig, workload: Box<dyn Workload>, seed: u64) -> Result<Self, SimError> {
        config.check()?;
        Ok(Self {
            config,
            faults: Vec::new(),
            scaling: None,
            workload,
            seed,
            end: None,
            sabotage: None,
            has_whole_batches: false,
        })
    }

    /// Adds faults to the simulation.
    ///
    /// # Errors
    /// When a fault names a replica that the fleet does not have.
    pub fn with_faults(self, faults: Vec<Fault>) -> Result<Self, SimError> {
        faults.iter().try_for_each(|fault| fault.check(self.config.replicas.len()))?;
        Ok(Self { faults, ..self })
    }

    /// Ends the simulation at this time. Requests that run then have no outcome.
    #[must_use]
    pub fn until(self, end: Timestamp) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Plants a bug, which the checks of the composed simulation must find.
    #[doc(hidden)]
    #[must_use]
    pub fn sabotaged(self, sabotage: Option<Sabotage>) -> Self {
        Self { sabotage, ..self }
    }

    /// Lets the engines make the batches of a real executor, which is slower and gives the same run.
    #[doc(hidden)]
    #[must_use]
    pub fn with_whole_batches(self) -> Self {
        Self { has_whole_batches: true, ..self }
    }

    /// Runs to the end: until the workload has no more requests and all have ended.
    ///
    /// # Errors
    /// When the workload cannot be read or its times run backwards.
    pub fn run(self, observer: &mut dyn Observer) -> Result<Totals, SimError> {
        let mut world = World::new(self, observer);
        world.run()?;
        Ok(world.totals())
    }

    /// Runs to the end, then checks that no charge, no load and no block is left.
    ///
    /// # Errors
    /// The errors of [`Self::run`], and the violated invariant as a problem of the setting `invariant`.
    #[doc(hidden)]
    pub fn run_checked(self, observer: &mut dyn Observer) -> Result<Totals, SimError> {
        let mut world = World::new(self, observer);
        world.run()?;
        world.check_rest().map_err(|problem| SimError::setting("invariant", problem))?;
        Ok(world.totals())
    }
}

/// Event at a point in time.
#[derive(Debug)]
enum Event {
    /// A client sends a request for the first time.
    Send(Box<TimedRequest>),
    /// The gateway receives a request.
    Receive(Key),
    /// The prompt of a request is tokenized.
    Tokenized(Key),
    /// A client sends a request again.
    Retry(Key),
    /// A replica receives a request.
    Submit(RequestId, usize),
    /// A replica is notified that a reader has disconnected.
    Abort(RequestId, usize),
    /// The oldest step of a replica's process ends.
    StepDone { replica: usize, process: u32 },
    /// A deadline of a replica's engine may have passed.
    Tick { replica: usize, process: u32 },
    /// A replica has a new executor.
    ExecutorMade { replica: usize, process: u32, epoch: Epoch },
    /// The gateway receives the first token of an attempt.
    FirstToken(RequestId),
    /// The gateway receives the end of an attempt.
    Finished(RequestId, FinishReason),
    /// The gateway is notified that a replica does not finish an attempt.
    AttemptFailed(RequestId, Failure),
    /// The gateway loses a connection.
    LinkLost { replica: usize, link: u32 },
    /// The gateway has a connection again.
    LinkUp { replica: usize, link: u32 },
    /// Replicas report, and probes are sent.
    Heartbeat,
    /// A probe has ended.
    Probed(Probe, Option<Nanos>),
    /// A client is tired of waiting for its first token.
    Patience { key: Key, n_retries: u32 },
    /// The state of the replicas is sampled.
    Sample,
    /// The autoscaler decides.
    Scale,
    /// A replica that the autoscaler started answers.
    Started(usize),
    /// A fault begins.
    Fault(usize),
    /// A fault ends.
    FaultEnd(usize),
}

/// A replica, with the network between it and the gateway.
#[derive(Debug)]
struct Node {
    id: ReplicaId,
    /// `None`: no process runs.
    replica: Option<Replica>,
    /// Number of the process; events of earlier ones are void.
    process: u32,
    /// Number of the connection.
    link: u32,
    /// Whether the gateway has a connection.
    is_connected: bool,
    /// Cut of the network, until whose end messages are delayed. A cut that outlasts the connection loses
    /// them.
    cut: Option<Cut>,
    /// Deadline of the engine for which a tick is on its way.
    tick_at: Option<Timestamp>,
    /// Whether the gateway has the content of the prefix cache, so that the next report has changes only.
    follows_cache: bool,
    /// Counts at the last sample.
    sampled: Counts,
    counts: Counts,
    /// Counts of the scheduler of processes that have ended.
    lost: Counters,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    until: Timestamp,
    is_lossy: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    n_steps: u64,
    busy: Nanos,
    prompt_tokens: u64,
    output_tokens: u64,
}

impl Node {
    /// Counts of the scheduler so far, those of processes that have ended included.
    fn counters(&self) -> Counters {
        let mut counters = self.lost;
        if let Some(replica) = &self.replica {
            counters += replica.core().scheduler().stats().counters;
        }
        counters
    }

    /// Counts of the node so far.
    fn counts(&self) -> Counts {
        let Counters { prompt_tokens, output_tokens, .. } = self.counters();
        Counts { prompt_tokens, output_tokens, ..self.counts }
    }
}

/// Everything while it runs.
struct World<'a> {
    config: FleetConfig,
    faults: Vec<Fault>,
    scaling: Option<Scaling>,
    workload: Box<dyn Workload>,
    observer: &'a mut dyn Observer,
    rng: Rng,
    end: Option<Timestamp>,
    sabotage: Option<Sabotage>,
    has_whole_batches: bool,
    now: Timestamp,
    queue: EventQueue<Event>,
    /// The next request of the workload.
    next: Option<TimedRequest>,
    /// Number of requests on the queue that clients will send after an answer.
    n_follow_ups: u64,
    last_sent: Timestamp,
    n_events: u64,
    n_requests: u64,
    n_attempts: u32,
    nodes: Vec<Node>,
    node_of: BTreeMap<ReplicaId, usize>,
    live: Slab,
    dispatch: Dispatch,
    limits: LimitState,
    gate: Option<Gate>,
    tokenizing: Workers,
    delivery: Workers,
    /// Requests that wait for a replica to come back.
    waiting: Vec<Key>,
    tenants: Vec<TenantId>,
    /// Tokens of the replica whose effects are carried out.
    plain_tokens: Vec<PlainToken>,
    /// Sampling parameters by the most tokens that they allow.
    samplings: HashMap<u32, Arc<SamplingParams>>,
    /// Whether block names are needed for choices.
    uses_blocks: bool,
}

impl<'a> World<'a> {
    fn new(simulation: Simulation, observer: &'a mut dyn Observer) -> Self {
        let Simulation { config, faults, scaling, workload, seed, end, sabotage, has_whole_batches } =
            simulation;
        let mut rng = Rng::with_seed(seed);
        let router = Router::new(config.gateway.policy, rng.u64(..));
        let mut dispatch = Dispatch::new(router, config.gateway.health);
        let uses_blocks = config.replicas.len() > 1 && dispatch.router.uses_blocks();
        let start = Timestamp::default();
        let mut node_of = BTreeMap::new();
        let mut nodes = Vec::with_capacity(config.replicas.len());
        for (index, replica) in config.replicas.iter().enumerate() {
            let id = dispatch.add(&format!("replica-{index}"), start);
            dispatch.board.be_ready(id, start);
            node_of.insert(id, index);
            nodes.push(Node {
                id,
                replica: Some(Replica::new(replica.clone(), has_whole_batches, rng.fork())),
                process: 0,
                link: 0,
                is_connected: true,
                cut: None,
                tick_at: None,
                follows_cache: false,
                sampled: Counts::default(),
                counts: Counts::default(),
                lost: Default::default(),
            });
        }
        let mut queue = EventQueue::default();
        queue.push(start, Event::Heartbeat);
        if config.sample_interval.is_some() {
            queue.push(start, Event::Sample);
        }
        faults.iter().enumerate().for_each(|(index, fault)| queue.push(fault.at(), Event::Fault(index)));
        Self {
            gate: config.gateway.overload.map(Gate::new),
            tokenizing: Workers::new(config.gateway.tokenizing),
            delivery: Workers::new(config.gateway.delivery),
            limits: LimitState::new(MAX_SCOPES, None),
            config,
            faults,
            scaling: scaling.map(Scaling::new),
            workload,
            observer,
            rng,
            end,
            sabotage,
            has_whole_batches,
            now: start,
            queue,
            next: None,
            n_follow_ups: 0,
            last_sent: start,
            n_events: 0,
            n_requests: 0,
            n_attempts: 0,
            nodes,
            node_of,
            live: Slab::default(),
            dispatch,
            waiting: Vec::new(),
            tenants: Vec::new(),
            plain_tokens: Vec::new(),
            samplings: HashMap::new(),
            uses_blocks,
        }
    }

    fn run(&mut self) -> Result<(), SimError> {
        self.begin_scaling();
        self.pull()?;
        loop {
            let next = self.next.as_ref().map(|timed| timed.at);
            // What only repeats itself does not keep a run going.
            if next.is_none() && self.live.len() == 0 && self.n_follow_ups == 0 {
                return Ok(());
            }
            let is_request = match (next, self.queue.next_at()) {
                (Some(next), Some(at)) => next <= at,
                (next, _) => next.is_some(),
            };
            let at = if is_request { next } else { self.queue.next_at() };
            let Some(at) = at else { return Ok(()) };
            if self.end.is_some_and(|end| at > end) {
                return Ok(());
            }
            self.now = self.now.max(at);
            self.n_events += 1;
            if is_request {
                let timed = self.next.take();
                timed.into_iter().for_each(|timed| self.send(timed));
                self.pull()?;
            } else if let Some((_, event)) = self.queue.pop() {
                self.handle(event);
            }
        }
    }

    /// Takes the next request from the workload.
    fn pull(&mut self) -> Result<(), SimError> {
        self.next = self.workload.next_request()?;
        let Some(timed) = &self.next else { return Ok(()) };
        if timed.at < self.last_sent {
            return Err(SimError::TimeRunsBackwards {
                index: self.n_requests,
                at_s: timed.at.as_ns() as f64 / 1e9,
                before_s: self.last_sent.as_ns() as f64 / 1e9,
            });
        }
        self.last_sent = timed.at;
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send(timed) => {
                self.n_follow_ups -= 1;
                self.send(*timed);
            }
            Event::Receive(key) => self.receive(key),
            Event::Tokenized(key) => self.enter(key),
            Event::Retry(key) => self.send_again(key),
            Event::Submit(id, replica) => self.submit(id, replica),
            Event::Abort(id, replica) => self.abort(id, replica),
            Event::StepDone { replica, process } => self.end_step(replica, process),
            Event::Tick { replica, process } => self.tick(replica, process),
            Event::ExecutorMade { replica, process, epoch } => self.take_executor(replica, process, epoch),
            Event::FirstToken(id) => self.first_token(id),
            Event::Finished(id, reason) => self.finished(id, reason),
            Event::AttemptFailed(id, failure) => self.attempt_failed(id, failure),
            Event::LinkLost { replica, link } => self.link_lost(replica, link),
            Event::LinkUp { replica, link } => self.link_up(replica, link),
            Event::Heartbeat => self.heartbeat(),
            Event::Probed(probe, answered) => self.probed(probe, answered),
            Event::Patience { key, n_retries } => self.lose_patience(key, n_retries),
            Event::Sample => self.sample(),
            Event::Scale => self.scale(),
            Event::Started(index) => self.started(index),
            Event::Fault(index) => self.begin_fault(index),
            Event::FaultEnd(index) => self.end_fault(index),
        }
    }

    fn scopes(&mut self, tenant: u32) -> Vec<Scope> {
        let limits: Limits =
            self.config.gateway.limits.get(&tenant).copied().unwrap_or(self.config.gateway.default_limits);
        if limits.is_empty() {
            return Vec::new();
        }
        vec![Scope { name: self.tenant(tenant).0, limits }]
    }

    fn tenant(&mut self, number: u32) -> TenantId {
        let known = self.tenants.len();
        if number as usize >= known {
            let new = (known..=number as usize).map(|n| TenantId(format!("tenant-{n}").into()));
            self.tenants.extend(new);
        }
        self.tenants[number as usize].clone()
    }

    fn sample(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let stats = node.replica.as_ref().map(|replica| replica.core().scheduler().stats());
            let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let counts = node.counts();
            let before = std::mem::replace(&mut node.sampled, counts);
            let stats = stats.unwrap_or_default();
            self.observer.sampled(&ReplicaSample {
                at_ns: self.now.as_ns(),
                replica: index as u32,
                is_up: node.replica.is_some(),
                n_running: of(stats.running),
                n_waiting: of(stats.waiting),
                used_blocks: of(stats.used_blocks),
                cached_blocks: of(stats.cached_blocks),
                total_blocks: of(stats.total_blocks),
                n_steps: counts.n_steps - before.n_steps,
                busy: Nanos(counts.busy.0 - before.busy.0),
                prompt_tokens: counts.prompt_tokens - before.prompt_tokens,
                output_tokens: counts.output_tokens - before.output_tokens,
            });
        }
        if let Some(interval) = self.config.sample_interval {
            self.queue.push(self.now + interval, Event::Sample);
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals {
            n_events: self.n_events,
            n_requests: self.n_requests,
            ejections: self.dispatch.board.n_ejections(),
            end_ns: self.now.as_ns(),
            ..Totals::default()
        };
        for node in &self.nodes {
            let counters = node.counters();
            totals.cache_query_tokens += counters.cache_query_tokens;
            totals.cache_hit_tokens += counters.cache_hit_tokens;
            totals.preemptions += counters.preemptions;
            totals.output_tokens += counters.output_tokens;
            totals.prompt_tokens += counters.prompt_tokens;
            totals.n_steps += node.counts.n_steps;
            totals.busy = Nanos(totals.busy.0 + node.counts.busy.0);
        }
        totals
    }
}
