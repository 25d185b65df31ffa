//! Small fleets for tests, and the behaviour of whole runs.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::overload::GateConfig;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::Objective;
use throng_sim::cost::LinearCostModel;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{ClientConfig, Fault, FleetConfig, GatewaySettings, ReplicaConfig, Stage};
use throng_sim::outcome::{EndReason, Recorder};
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::Simulation;
use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape, SessionShape, Sessions, Workload};

pub const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 8192,
    max_batch_tokens: 512,
    max_batch_sequences: 64,
    max_sequence_tokens: 32_768,
    vocabulary_size: 32_000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

pub const COST: LinearCostModel = LinearCostModel {
    fixed: Duration::from_millis(8),
    per_token: Duration::from_micros(40),
    per_sequence: Duration::from_micros(10),
    per_context_token_ns: 20.0,
};

pub fn replica() -> ReplicaConfig {
    ReplicaConfig::new(CAPACITY, Arc::new(COST))
}

/// A gateway that adds no time.
pub fn free_gateway() -> GatewaySettings {
    GatewaySettings { tokenizing: Stage::FREE, delivery: Stage::FREE, ..GatewaySettings::default() }
}

pub fn requests(rate: f64, seconds: u64, seed: u64) -> Box<dyn Workload> {
    let shape = RequestShape::new(
        Distribution::LogNormal { median: 300.0, sigma: 0.8 },
        Distribution::Exponential { mean: 80.0 },
    );
    let process = ArrivalProcess::Poisson { rate };
    Box::new(OpenLoop::new(process, shape, Nanos::from_ms(seconds * 1000), seed).expect("valid"))
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::default() + Nanos::from_ms(seconds * 1000)
}

fn run(fleet: FleetConfig, workload: Box<dyn Workload>, faults: Vec<Fault>) -> (Recorder, Report) {
    let simulation = Simulation::new(fleet, workload, 1).and_then(|one| one.with_faults(faults));
    let mut recorder = Recorder::default();
    let totals = simulation.expect("valid").run_checked(&mut recorder).expect("it runs");
    let mut builder = ReportBuilder::new(Objective::default(), Nanos(0));
    for outcome in &recorder.outcomes {
        throng_sim::outcome::Observer::ended(&mut builder, outcome);
    }
    (recorder, builder.finish(totals))
}

#[test]
fn every_request_is_answered_and_counted() {
    let (recorder, report) = run(FleetConfig::uniform(replica(), 3), requests(20.0, 30, 4), Vec::new());
    assert!((500..700).contains(&recorder.outcomes.len()));
    assert_eq!(report.totals.n_requests, recorder.outcomes.len() as u64);
    assert!(recorder.outcomes.iter().all(|outcome| outcome.end == EndReason::Stop));
    let n_output: u64 = recorder.outcomes.iter().map(|outcome| u64::from(outcome.n_output)).sum();
    assert_eq!(report.totals.output_tokens, n_output);
    // A lone step of a prompt of 300 tokens takes 20 ms, one of a decoding sequence 8 ms.
    assert!((15.0..60.0).contains(&report.first_token.p50_ms), "{:?}", report.first_token);
    assert!((8.0..20.0).contains(&report.mean_gap.p50_ms), "{:?}", report.mean_gap);
    let replicas: Vec<_> = (0..3)
        .map(|index| recorder.outcomes.iter().filter(|outcome| outcome.replica == Some(index)).count())
        .collect();
    assert!(replicas.iter().all(|n| *n > 100), "all replicas share the load: {replicas:?}");
}

#[test]
fn stages_add_their_time() {
    let slow = |gateway: GatewaySettings| FleetConfig { gateway, ..FleetConfig::uniform(replica(), 1) };
    let first_token = |fleet| run(fleet, requests(1.0, 30, 4), Vec::new()).1.first_token.p50_ms;
    let free = first_token(slow(free_gateway()));
    let stage = |fixed_ms| Stage { fixed: Nanos::from_ms(fixed_ms), per_token_ns: 0.0, n_workers: 64 };
    let tokenizing = first_token(slow(GatewaySettings { tokenizing: stage(100), ..free_gateway() }));
    let delivery = first_token(slow(GatewaySettings { delivery: stage(50), ..free_gateway() }));
    let client_network = Nanos::from_ms(30);
    let network = first_token(slow(GatewaySettings { client_network, ..free_gateway() }));
    for (delayed, ms) in [(tokenizing, 100.0), (delivery, 50.0), (network, 60.0)] {
        assert!((delayed - free - ms).abs() < 10.0, "{delayed} ms after {free} ms");
    }
}

#[test]
fn a_session_finds_its_prefix_in_the_cache_and_goes_back_to_it() {
    let shape = SessionShape {
        turns: Distribution::Constant(6.0),
        start: Distribution::Constant(2_000.0),
        think_s: Distribution::Constant(1.0),
        ..SessionShape::chat()
    };
    let process = ArrivalProcess::Poisson { rate: 0.5 };
    let sessions = Sessions::new(process, shape, Nanos::from_ms(40_000), 5).expect("valid");
    let (_, report) = run(FleetConfig::uniform(replica(), 4), Box::new(sessions), Vec::new());
    let hits = report.totals.cache_hit_tokens as f64 / report.totals.cache_query_tokens as f64;
    assert!(hits > 0.75, "{hits} of the prompt tokens were cached");
}

#[test]
fn a_killed_replica_loses_no_request_and_returns() {
    let kill = Fault::Kill { replica: 0, at: at(10), restart_after: Some(Nanos::from_ms(5_000)) };
    let (recorder, report) = run(FleetConfig::uniform(replica(), 2), requests(10.0, 60, 4), vec![kill]);
    assert!(recorder.outcomes.iter().all(|outcome| outcome.end == EndReason::Stop));
    assert!(report.n_failovers > 0);
    let later = recorder.outcomes.iter().filter(|outcome| outcome.sent_ns > at(20).as_ns());
    let is_back = later.filter(|outcome| outcome.replica == Some(0)).count();
    assert!(is_back > 50, "only {is_back} requests went to the replica that is back");
}

#[test]
fn a_lone_replica_that_is_killed_fails_what_it_had_unless_it_returns_in_time() {
    for (restart_ms, fails) in [(2_000, false), (60_000, true)] {
        let restart_after = Some(Nanos::from_ms(restart_ms));
        let kill = Fault::Kill { replica: 0, at: at(10), restart_after };
        let (recorder, _) = run(FleetConfig::uniform(replica(), 1), requests(5.0, 15, 4), vec![kill]);
        let moved = recorder.outcomes.iter().filter(|outcome| outcome.n_failovers > 0);
        let moved: Vec<EndReason> = moved.map(|outcome| outcome.end).collect();
        let expected = if fails { EndReason::Failed } else { EndReason::Stop };
        assert!(!moved.is_empty() && moved.iter().all(|end| *end == expected), "{moved:?}");
    }
}

#[test]
fn a_partition_moves_what_was_cut_off() {
    let cut = Fault::Partition { replica: 1, at: at(10), lasting: Nanos::from_ms(20_000) };
    let (recorder, report) = run(FleetConfig::uniform(replica(), 2), requests(10.0, 60, 4), vec![cut]);
    assert!(recorder.outcomes.iter().all(|outcome| outcome.end == EndReason::Stop));
    assert!(report.n_failovers > 0);
}

#[test]
fn a_slow_replica_is_left_and_a_failed_step_repeated_elsewhere() {
    let slow = Fault::Slow { replica: 2, at: at(10), lasting: Nanos::from_ms(100_000), factor: 30.0 };
    let fail = Fault::FailStep { replica: 0, at: at(5) };
    let (recorder, report) = run(FleetConfig::uniform(replica(), 4), requests(20.0, 60, 4), vec![slow, fail]);
    assert!(recorder.outcomes.iter().all(|outcome| outcome.end.is_whole()));
    assert!(report.totals.ejections > 0 && report.n_failovers > 0);
}

#[test]
fn overload_is_refused_and_clients_ask_again() {
    let overload = Some(GateConfig { max_wait: Nanos::from_ms(500) });
    let gateway = GatewaySettings { overload, ..GatewaySettings::default() };
    let clients = ClientConfig { max_retries: 3, ..ClientConfig::default() };
    let fleet = FleetConfig { gateway, clients, ..FleetConfig::uniform(replica(), 1) };
    let (recorder, report) = run(fleet, requests(60.0, 30, 4), Vec::new());
    let n = |end| recorder.outcomes.iter().filter(|outcome| outcome.end == end).count();
    assert!(n(EndReason::Overloaded) > 100 && n(EndReason::Stop) > 300, "{:?}", report.ends);
    assert!(report.n_retries > 300);
    let answered =
        recorder.outcomes.iter().filter(|outcome| outcome.end.is_whole() && outcome.n_retries == 0);
    let most = answered.filter_map(|outcome| outcome.latency.first_token).max().expect("some");
    assert!(most < Nanos::from_ms(3_000), "one that entered waited for {most:?}");
}

#[test]
fn bad_settings_are_named() {
    let error = |fleet| Simulation::new(fleet, requests(1.0, 1, 1), 1).expect_err("wrong").to_string();
    assert!(error(FleetConfig::uniform(replica(), 0)).starts_with("replicas: "));
    let mut empty = replica();
    empty.capacity.n_blocks = 0;
    assert_eq!(error(FleetConfig::uniform(empty, 1)), "capacity.n_blocks: it is 0");
    let simulation = Simulation::new(FleetConfig::uniform(replica(), 1), requests(1.0, 1, 1), 1);
    let kill = Fault::Kill { replica: 3, at: at(1), restart_after: None };
    let error = simulation.and_then(|one| one.with_faults(vec![kill])).expect_err("wrong").to_string();
    assert!(error.starts_with("fault.replica: there is no replica 3"), "{error}");
}
