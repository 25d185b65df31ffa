//! Speed of the simulator: long hours of many requests, for a release build:
//! `cargo test --release -p throng-sim --test integration speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::cost::LinearCostModel;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{FleetConfig, ReplicaConfig};
use throng_sim::report::ReportBuilder;
use throng_sim::simulation::Simulation;
use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape};

use crate::fleets::CAPACITY;

/// Mean tokens of prompts and outputs.
const LENGTHS: (f64, f64) = (500.0, 300.0);

/// Simulates that many seconds and prints what it took, and a digest of the report, by which two versions of
/// the code can be compared.
fn simulate(
    process: ArrivalProcess,
    n_replicas: usize,
    (prompt, output): (f64, f64),
    seconds: u64,
    seed: u64,
) {
    let capacity = ExecutorCapacity {
        n_blocks: 40_000,
        max_batch_tokens: 2048,
        max_batch_sequences: 256,
        max_steps_in_flight: 2,
        ..CAPACITY
    };
    let cost = LinearCostModel {
        fixed: Duration::from_millis(12),
        per_token: Duration::from_micros(30),
        per_sequence: Duration::from_micros(20),
        per_context_token_ns: 20.0,
    };
    let fleet = FleetConfig::uniform(ReplicaConfig::new(capacity, Arc::new(cost)), n_replicas);
    let shape = RequestShape::new(
        Distribution::Exponential { mean: prompt },
        Distribution::Exponential { mean: output },
    );
    let workload = OpenLoop::new(process, shape, Nanos::from_ms(seconds * 1000), seed).expect("valid");
    let mut report = ReportBuilder::new(Objective::default(), Nanos(0));
    let started = Instant::now();
    let simulation = Simulation::new(fleet, Box::new(workload), 1).expect("valid");
    let totals = simulation.run(&mut report).expect("it runs");
    let took = started.elapsed();
    let report = report.finish(totals);
    let n_tokens = report.totals.output_tokens;
    let json = serde_json::to_string(&report).expect("plain numbers");
    let digest = json
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    println!(
        "{process:?}, {prompt} in, {output} out, {n_replicas} replicas, {seconds} s: {took:?}; {} events, \
         {} steps, {n_tokens} tokens, {:.0} ns a token; {:.0} % busy, first token p99 {:.0} ms, gap p50 {:.1} ms; report {digest:016x}",
        report.totals.n_events,
        report.totals.n_steps,
        took.as_nanos() as f64 / n_tokens as f64,
        100.0 * report.utilization(n_replicas),
        report.first_token.p99_ms,
        report.gap.p50_ms,
    );
}

#[test]
#[ignore = "minutes in a development build"]
fn an_hour_of_10_requests_a_second() {
    simulate(ArrivalProcess::Poisson { rate: 10.0 }, 1, LENGTHS, 3_600, 3);
}

#[test]
#[ignore = "a minute in a development build"]
fn minutes_of_80_requests_a_second() {
    simulate(ArrivalProcess::Poisson { rate: 80.0 }, 8, LENGTHS, 300, 3);
}

#[test]
#[ignore = "minutes in a development build"]
fn minutes_of_1000_requests_a_second() {
    simulate(ArrivalProcess::Poisson { rate: 1_000.0 }, 100, LENGTHS, 60, 3);
}

/// 700 million users who ask twice a day are 16,200 requests a second, 3 for each of 5,400 replicas. Two
/// replicas are simulated with their part of the load, twice: the difference is the error of the sample.
#[test]
#[ignore = "minutes in a release build"]
fn a_day_of_700_million_users() {
    let process = ArrivalProcess::Daily { mean_rate: 6.0, peak_factor: 2.5, day_s: 86_400.0 };
    [3, 4].into_iter().for_each(|seed| simulate(process, 2, LENGTHS, 86_400, seed));
}
