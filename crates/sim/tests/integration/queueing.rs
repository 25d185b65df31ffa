//! Queues whose waits are known by formula.

use std::sync::Arc;
use std::time::Duration;

use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::Nanos;
use throng_sim::cost::LinearCostModel;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{FleetConfig, ReplicaConfig};
use throng_sim::outcome::Recorder;
use throng_sim::simulation::Simulation;
use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape};

use crate::fleets::{CAPACITY, free_gateway};

/// Mean wait for the first step in seconds, of an engine with `n_servers` places whose steps take `step_ms`.
fn mean_wait(n_servers: u32, step_ms: f64, output: Distribution, rate: f64, n: u64) -> f64 {
    let capacity = ExecutorCapacity { max_batch_sequences: n_servers, ..CAPACITY };
    let fixed = Duration::from_secs_f64(step_ms / 1e3);
    let cost = LinearCostModel { fixed, ..LinearCostModel::default() };
    let mut replica = ReplicaConfig::new(capacity, Arc::new(cost));
    replica.network = Nanos(0);
    replica.engine.scheduler.max_queued_requests = u32::MAX;
    replica.engine.scheduler.inter_token_target_ms = u32::MAX;
    let fleet = FleetConfig { gateway: free_gateway(), ..FleetConfig::uniform(replica, 1) };
    let shape = RequestShape::new(Distribution::Constant(1.0), output);
    let workload =
        OpenLoop::new(ArrivalProcess::Poisson { rate }, shape, Nanos(u64::MAX), 11).expect("valid");
    let mut recorder = Recorder::default();
    let simulation = Simulation::new(fleet, Box::new(workload.with_max_requests(n)), 1).expect("valid");
    simulation.run(&mut recorder).expect("it runs");
    assert_eq!(recorder.outcomes.len() as u64, n);
    let waits = recorder.outcomes.iter().map(|outcome| outcome.queued.expect("it ran").as_secs_f64());
    waits.sum::<f64>() / n as f64
}

/// One server with constant service: the wait of Pollaczek and Khinchine.
#[test]
fn m_d_1() {
    let service_s = 0.010;
    for load in [0.3, 0.6, 0.8] {
        let expected = load * service_s / (2.0 * (1.0 - load));
        let output = Distribution::Constant(1.0);
        let wait = mean_wait(1, 1e3 * service_s, output, load / service_s, 100_000);
        assert!((wait / expected - 1.0).abs() < 0.04, "at {load}: {wait} s instead of {expected} s");
    }
}

/// Several servers with exponential service: the wait of Erlang. Each place of the batch is a server; service
/// is a number of steps, so that a request that comes also waits for the end of the step that runs.
#[test]
fn m_m_c() {
    let (n_servers, step_s, mean_steps) = (8, 0.001, 60.0);
    let service_s = mean_steps * step_s;
    for load in [0.6, 0.85] {
        let rate = load * f64::from(n_servers) / service_s;
        let offered = rate * service_s;
        let term = |k: u32| (1..=k).fold(1.0, |product, i| product * offered / f64::from(i));
        let full = term(n_servers) / (1.0 - load);
        let waits = full / ((0..n_servers).map(term).sum::<f64>() + full);
        let expected = waits * service_s / (f64::from(n_servers) * (1.0 - load)) + step_s / 2.0;
        let output = Distribution::Exponential { mean: mean_steps };
        let wait = mean_wait(n_servers, 1e3 * step_s, output, rate, 100_000);
        assert!((wait / expected - 1.0).abs() < 0.08, "at {load}: {wait} s instead of {expected} s");
    }
}
