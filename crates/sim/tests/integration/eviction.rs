//! Agents with more context than the cache holds: blocks that are kept by their worth against those that were
//! used last. And chats, to which it must not matter.

use std::sync::Arc;

use throng_core::scheduling::block_pool::EvictionPolicy;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{FleetConfig, ReplicaConfig};
use throng_sim::outcome::{Observer, Recorder};
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::Simulation;
use throng_sim::workload::{ArrivalProcess, SessionShape, Sessions};

use super::fleets::{CAPACITY, COST};

/// Agents at a tenth of their usual lengths. Of their tools, 86 % answer within a second and 95 % within ten.
fn agents() -> SessionShape {
    SessionShape {
        turns: Distribution::LogNormal { median: 43.0, sigma: 0.4 },
        system: 1_200,
        start: Distribution::LogNormal { median: 800.0, sigma: 0.5 },
        turn: Distribution::LogNormal { median: 430.0, sigma: 0.5 },
        output: Distribution::LogNormal { median: 44.0, sigma: 0.7 },
        think_s: Distribution::LogNormal { median: 0.0123, sigma: 4.07 },
        max_context: 32_000,
    }
}

/// Prompt tokens computed, and the report, of sessions that begin at `rate` a second for `seconds`.
fn run(
    shape: &SessionShape,
    (rate, seconds): (f64, u64),
    n_blocks: u32,
    eviction: EvictionPolicy,
    seed: u64,
) -> (u64, Report) {
    let capacity = ExecutorCapacity { n_blocks, ..CAPACITY };
    let mut replica = ReplicaConfig::new(capacity, Arc::new(COST));
    replica.engine.scheduler.eviction = eviction;
    let process = ArrivalProcess::Regular { rate };
    let sessions = Sessions::new(process, shape.clone(), Nanos::from_ms(seconds * 1_000), seed);
    let fleet = FleetConfig::uniform(replica, 1);
    let simulation = Simulation::new(fleet, Box::new(sessions.expect("valid")), seed).expect("valid");
    let mut recorder = Recorder::default();
    let totals = simulation.run_checked(&mut recorder).expect("it runs");
    let mut builder = ReportBuilder::new(Objective::default(), Nanos(0));
    recorder.outcomes.iter().for_each(|outcome| builder.ended(outcome));
    (totals.prompt_tokens, builder.finish(totals))
}

#[test]
fn agents_that_wait_for_their_tools_keep_their_blocks() {
    // A context has 13,700 tokens in the mean: 40 % of those of 64 sessions.
    let n_blocks = 21_900;
    let [(lru, before), (worth, report)] = [EvictionPolicy::Lru, EvictionPolicy::Worth]
        .map(|eviction| run(&agents(), (64.0, 1), n_blocks, eviction, 5));
    let computed = worth as f64 / lru as f64;
    let first_token = report.first_token.p90_ms / before.first_token.p90_ms;
    println!("{computed:.3} of the prompt tokens are computed; first token: {first_token:.3} at p90");
    assert!(computed <= 0.5 && first_token <= 0.4, "{computed:.3}, {first_token:.3}");
}

#[test]
fn chats_are_served_as_before() {
    for seed in 1..4 {
        let [(lru, before), (worth, report)] = [EvictionPolicy::Lru, EvictionPolicy::Worth]
            .map(|eviction| run(&SessionShape::chat(), (0.5, 300), 3_000, eviction, seed));
        let computed = worth as f64 / lru as f64;
        let first_token = report.first_token.p90_ms / before.first_token.p90_ms;
        println!("seed {seed}: {computed:.3} of the prompt tokens; first token: {first_token:.3} at p90");
        assert!(computed <= 1.02 && first_token <= 1.05, "seed {seed}: {computed:.3}, {first_token:.3}");
    }
}
