//! Gateway decisions, router, limits, overload gate, failover and engines together, under faults: each
//! request ends exactly once, no token is lost or doubled, limits hold, charges are settled once, nobody
//! starves, and nothing is left at the end. Planted mistakes are found. A failing seed prints the line that
//! repeats it.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use throng_core::engine::END;
use throng_core::fleet::limits::Limits;
use throng_core::fleet::overload::GateConfig;
use throng_core::fleet::routing::Policy;
use throng_core::request::TokenId;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::{Nanos, Timestamp};
use throng_sim::cost::LinearCostModel;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{
    ClientConfig, Fault, FleetConfig, GatewaySettings, ReplicaConfig, SpeculationConfig, Stage,
};
use throng_sim::outcome::{EndReason, Observer, RequestOutcome, Totals};
use throng_sim::simulation::{Sabotage, Simulation};
use throng_sim::workload::{
    ArrivalProcess, OpenLoop, RequestShape, SessionShape, Sessions, SimRequest, TimedRequest, Workload,
};

const VOCABULARY: u32 = 5_000;
/// Longest time that a request may take after the last fault, retries of its client included.
const MOST: Nanos = Nanos::from_ms(240_000);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Events of a run: more of them in the nightly run. Read here and not by `throng-testkit`, which would have
/// the kernels and the model compiled for the simulator's tests.
fn n_events() -> u64 {
    let nightly = std::env::var_os("THRONG_NIGHTLY").is_some();
    setting("THRONG_SIMULATION_EVENTS").unwrap_or(if nightly { 10_000_000 } else { 1_000_000 })
}

/// A request as its client sees it.
struct Seen {
    request: SimRequest,
    n_tokens: u32,
    has_ended: bool,
    is_admitted: bool,
}

/// Judges what happens.
#[derive(Default)]
struct Judge {
    limits: Limits,
    seen: BTreeMap<u64, Seen>,
    n_live: u64,
    running: BTreeMap<u32, u64>,
    /// Requests that began within a minute, without those of which nothing was computed.
    begun: BTreeMap<u32, VecDeque<(u64, Timestamp)>>,
    last_fault: Timestamp,
    counts: Counts,
    problem: Option<String>,
}

#[derive(Debug, Default)]
struct Counts {
    n_events: u64,
    n_requests: u64,
    n_tokens: u64,
    n_retries: u64,
    n_failovers: u64,
    n_whole: u64,
    n_refused: u64,
    n_failed: u64,
    n_gave_up: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.n_events += other.n_events;
        self.n_requests += other.n_requests;
        self.n_tokens += other.n_tokens;
        self.n_retries += other.n_retries;
        self.n_failovers += other.n_failovers;
        self.n_whole += other.n_whole;
        self.n_refused += other.n_refused;
        self.n_failed += other.n_failed;
        self.n_gave_up += other.n_gave_up;
    }

    fn rarest(&self) -> u64 {
        let kinds =
            [self.n_retries, self.n_failovers, self.n_whole, self.n_refused, self.n_failed, self.n_gave_up];
        kinds.into_iter().min().unwrap_or(0)
    }
}

impl Judge {
    fn complain(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}

impl Observer for Judge {
    fn sent(&mut self, number: u64, timed: &TimedRequest) {
        let request = timed.request.clone();
        let seen = Seen { request, n_tokens: 0, has_ended: false, is_admitted: false };
        if self.seen.insert(number, seen).is_some() {
            self.complain(format!("two requests have number {number}"));
        }
        self.n_live += 1;
        self.counts.n_requests += 1;
    }

    fn retried(&mut self, number: u64) {
        self.counts.n_retries += 1;
        if let Some(seen) = self.seen.get_mut(&number) {
            seen.n_tokens = 0;
        }
    }

    fn token(&mut self, number: u64, _: u32, token: TokenId, _: Timestamp) {
        self.counts.n_tokens += 1;
        let Some(seen) = self.seen.get_mut(&number) else { return };
        let index = seen.n_tokens;
        seen.n_tokens += 1;
        let expected = seen.request.output_token(index, VOCABULARY);
        if seen.has_ended {
            self.complain(format!("request {number} got a token after its end"));
        } else if token != expected {
            self.complain(format!("token {index} of request {number} is {token}, not {expected}"));
        }
    }

    fn admitted(&mut self, number: u64, tenant: u32, at: Timestamp) {
        let Some(seen) = self.seen.get_mut(&number) else { return };
        if std::mem::replace(&mut seen.is_admitted, true) {
            self.complain(format!("request {number} was admitted twice"));
        }
        let running = self.running.entry(tenant).or_default();
        *running += 1;
        let running = *running;
        if self.limits.concurrent_requests.is_some_and(|limit| running > limit) {
            self.complain(format!("{running} requests of tenant {tenant} run at {at:?}"));
        }
        let begun = self.begun.entry(tenant).or_default();
        begun.push_back((number, at));
        while begun.front().is_some_and(|(_, first)| at.since(*first) >= Nanos::from_ms(60_000)) {
            begun.pop_front();
        }
        let n = begun.len() as u64;
        if self.limits.requests_per_minute.is_some_and(|limit| n > limit) {
            self.complain(format!("{n} requests of tenant {tenant} began within a minute"));
        }
    }

    fn released(&mut self, number: u64, tenant: u32, _: Timestamp) {
        let was_admitted = self.seen.get_mut(&number).map(|seen| std::mem::take(&mut seen.is_admitted));
        if was_admitted != Some(true) {
            return self.complain(format!("request {number} was released and not admitted"));
        }
        *self.running.entry(tenant).or_default() -= 1;
        // A request that no replica took in gives its place in the minute back.
        if self.seen.get(&number).is_some_and(|seen| seen.n_tokens == 0) {
            self.begun.entry(tenant).or_default().retain(|(other, _)| *other != number);
        }
    }

    fn ended(&mut self, outcome: &RequestOutcome) {
        let number = outcome.number;
        self.counts.n_failovers += u64::from(outcome.n_failovers > 0);
        let kind = match outcome.end {
            EndReason::Stop | EndReason::Length => &mut self.counts.n_whole,
            EndReason::GaveUp => &mut self.counts.n_gave_up,
            reason if reason.is_refusal() => &mut self.counts.n_refused,
            _ => &mut self.counts.n_failed,
        };
        *kind += 1;
        self.n_live -= 1;
        let Some(seen) = self.seen.get_mut(&number) else { return };
        let (n_tokens, n_expected) = (seen.n_tokens, seen.request.output.n_tokens);
        let is_admitted = seen.is_admitted;
        if std::mem::replace(&mut seen.has_ended, true) {
            self.complain(format!("request {number} ended twice"));
        } else if is_admitted {
            self.complain(format!("request {number} ended and was not released"));
        } else if outcome.n_output != n_tokens {
            self.complain(format!("request {number} counts {} tokens and got {n_tokens}", outcome.n_output));
        } else if outcome.end.is_whole() && n_tokens != n_expected {
            self.complain(format!("request {number} has {n_tokens} of {n_expected} tokens"));
        }
        let since = self.last_fault.max(Timestamp::from_ns(outcome.sent_ns));
        if outcome.ended().since(since) > MOST {
            self.complain(format!("request {number} took {:?}: it starved", outcome.latency.end_to_end));
        }
    }
}

fn ms(rng: &mut Rng, range: std::ops::Range<u64>) -> Nanos {
    Nanos::from_ms(rng.u64(range))
}

pub fn fleet(rng: &mut Rng) -> FleetConfig {
    let capacity = ExecutorCapacity {
        n_blocks: rng.u32(60..400),
        max_batch_tokens: rng.u32(32..300),
        max_batch_sequences: rng.u32(2..24),
        max_sequence_tokens: 900,
        vocabulary_size: VOCABULARY,
        n_state_slots: 0,
        max_steps_in_flight: rng.u32(1..=2),
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    };
    let cost = LinearCostModel {
        fixed: Duration::from_micros(rng.u64(1_000..20_000)),
        per_token: Duration::from_micros(rng.u64(10..200)),
        ..LinearCostModel::default()
    };
    let mut replica = ReplicaConfig::new(capacity, Arc::new(cost));
    replica.network = Nanos(rng.u64(0..3_000_000));
    replica.engine.scheduler.max_queued_requests = rng.u32(2..200);
    replica.engine.scheduler.prefix_caching = rng.u8(..4) > 0;
    replica.engine.queue_timeout_ms = if rng.u8(..4) == 0 { rng.u64(500..5_000) } else { 0 };
    if rng.u8(..3) == 0 {
        replica.engine.scheduler.max_draft_tokens = 4;
        replica.speculation = Some(SpeculationConfig { n_drafts: rng.u32(1..4), acceptance: rng.f64() });
    }
    let some = |rng: &mut Rng, range: std::ops::Range<u64>| (rng.bool()).then(|| rng.u64(range));
    let default_limits = Limits {
        concurrent_requests: some(rng, 2..20),
        requests_per_minute: some(rng, 30..600),
        tokens_per_minute: some(rng, 20_000..200_000),
    };
    let overload = rng.bool().then(|| GateConfig { max_wait: ms(rng, 200..4_000) });
    let gateway = GatewaySettings {
        policy: Policy::ALL[rng.usize(..4)],
        overload,
        default_limits,
        tokenizing: Stage { fixed: Nanos(rng.u64(0..2_000_000)), per_token_ns: 1_000.0, n_workers: 2 },
        client_network: Nanos(rng.u64(0..20_000_000)),
        patience: ms(rng, 1_000..15_000),
        ..GatewaySettings::default()
    };
    let clients = ClientConfig {
        max_retries: rng.u32(0..4),
        backoff: ms(rng, 50..1_000),
        patience: rng.bool().then(|| ms(rng, 500..10_000)),
    };
    let n_replicas = rng.usize(1..5);
    FleetConfig { gateway, clients, ..FleetConfig::uniform(replica, n_replicas) }
}

pub fn workload(rng: &mut Rng) -> Box<dyn Workload> {
    let duration = ms(rng, 10_000..40_000);
    let rate = 1.0 + 30.0 * rng.f64();
    let process = match rng.u8(..3) {
        0 => ArrivalProcess::Gamma { rate, cv: 3.0 },
        _ => ArrivalProcess::Poisson { rate },
    };
    if rng.u8(..3) == 0 {
        let shape = SessionShape {
            turns: Distribution::Uniform { low: 1.0, high: 5.0 },
            system: rng.u32(0..64),
            start: Distribution::Constant(0.0),
            turn: Distribution::Uniform { low: 1.0, high: 40.0 },
            output: Distribution::Uniform { low: 1.0, high: 40.0 },
            think_s: Distribution::Exponential { mean: 0.5 },
            max_context: 800,
        };
        let process = ArrivalProcess::Poisson { rate: rate / 3.0 };
        return Box::new(
            Sessions::new(process, shape, duration, rng.u64(..)).expect("valid").with_tenants(3),
        );
    }
    let shape = RequestShape {
        shared_prefix: rng.u32(0..100),
        n_tenants: rng.u32(1..5),
        ..RequestShape::new(
            Distribution::Uniform { low: 1.0, high: 300.0 },
            Distribution::Exponential { mean: 40.0 },
        )
    };
    Box::new(OpenLoop::new(process, shape, duration, rng.u64(..)).expect("valid"))
}

pub fn faults(rng: &mut Rng, n_replicas: usize) -> Vec<Fault> {
    let n = rng.usize(0..8);
    let fault = |_| {
        let (replica, at) = (rng.usize(..n_replicas), Timestamp::default() + ms(rng, 500..40_000));
        match rng.u8(..8) {
            0..3 => Fault::Kill { replica, at, restart_after: Some(ms(rng, 100..20_000)) },
            3..5 => Fault::Partition { replica, at, lasting: ms(rng, 100..4_000) },
            5..7 => Fault::FailStep { replica, at },
            _ => Fault::Slow { replica, at, lasting: ms(rng, 1_000..10_000), factor: 1.0 + 10.0 * rng.f64() },
        }
    };
    (0..n).map(fault).collect()
}

/// The end of the last fault.
fn last_fault(faults: &[Fault]) -> Timestamp {
    let end = |fault: &Fault| match fault {
        Fault::Kill { at, restart_after, .. } => *at + restart_after.unwrap_or_default(),
        Fault::Slow { at, lasting, .. } | Fault::Partition { at, lasting, .. } => *at + *lasting,
        Fault::FailStep { at, .. } => *at,
    };
    faults.iter().map(end).max().unwrap_or_default()
}

/// Runs one world and says what does not hold.
fn run_world(mut rng: Rng, sabotage: Option<Sabotage>) -> Result<Counts, String> {
    let fleet = fleet(&mut rng);
    let workload = workload(&mut rng);
    let faults = faults(&mut rng, fleet.replicas.len());
    let mut judge =
        Judge { limits: fleet.gateway.default_limits, last_fault: last_fault(&faults), ..Judge::default() };
    let simulation = Simulation::new(fleet, workload, rng.u64(..)).map_err(|error| error.to_string())?;
    let simulation = simulation.with_faults(faults).map_err(|error| error.to_string())?.sabotaged(sabotage);
    // A run whose requests never end is cut off.
    let end = Timestamp::default() + Nanos::from_ms(3_600_000);
    let ran: Result<Totals, String> =
        simulation.until(end).run_checked(&mut judge).map_err(|error| error.to_string());
    if let Some(problem) = judge.problem {
        return Err(problem);
    }
    if judge.n_live > 0 {
        return Err(format!("{} requests never ended", judge.n_live));
    }
    judge.counts.n_events = ran?.n_events + judge.counts.n_tokens;
    Ok(judge.counts)
}

fn run_seed(seed: u64, n_events: u64, sabotage: Option<Sabotage>) -> Result<Counts, String> {
    let (mut rng, mut counts) = (Rng::with_seed(seed), Counts::default());
    while counts.n_events < n_events {
        counts.add(&run_world(rng.fork(), sabotage)?);
    }
    Ok(counts)
}

fn run_seeds(seeds: impl Iterator<Item = u64>) {
    let only = setting("THRONG_SIMULATION_SEED");
    let n_events = n_events() / 8;
    let mut of_all = Counts::default();
    for seed in seeds.filter(|seed| only.is_none_or(|only| only == *seed)) {
        let problem = match catch_unwind(AssertUnwindSafe(|| run_seed(seed, n_events, None))) {
            Ok(Ok(counts)) => {
                println!("seed {seed}: {counts:?}");
                of_all.add(&counts);
                continue;
            }
            Ok(Err(problem)) => problem,
            Err(_) => "it panicked".to_owned(),
        };
        panic!(
            "seed {seed}: {problem}\nrerun: THRONG_SIMULATION_SEED={seed} THRONG_SIMULATION_EVENTS={} \
             cargo test -p throng-sim --test integration composed::",
            8 * n_events
        );
    }
    assert!(only.is_some() || of_all.rarest() >= 1, "something was hardly seen: {of_all:?}");
}

#[test]
fn even_seeds_hold_every_promise() {
    run_seeds((0..8).step_by(2));
}

#[test]
fn odd_seeds_hold_every_promise() {
    run_seeds((1..8).step_by(2));
}

/// Each mistake makes the same runs fail: one that nobody sees would prove that the runs prove nothing.
#[test]
fn planted_mistakes_are_found() {
    for sabotage in Sabotage::ALL {
        let found = (0..8).find_map(|seed| {
            let run = catch_unwind(AssertUnwindSafe(|| run_seed(seed, 125_000, Some(sabotage))));
            match run {
                Ok(Ok(_)) => None,
                Ok(Err(problem)) => Some(problem),
                Err(_) => Some("an assertion in core failed".to_owned()),
            }
        });
        match found {
            Some(problem) => println!("{sabotage:?}: {problem}"),
            None => panic!("{sabotage:?} was not found"),
        }
    }
}

/// The token that ends outputs is no token of them.
#[test]
fn outputs_do_not_end_by_chance() {
    let tokens = (0..10_000).map(|offset| throng_sim::workload::token_of(5, offset, VOCABULARY));
    assert!(tokens.into_iter().all(|token| token != END));
}
