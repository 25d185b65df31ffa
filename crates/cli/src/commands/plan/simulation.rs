//! The simulation of the best fleet for `throng plan --simulate`.

use std::thread;

use anyhow::Result;
use throng_core::fleet::routing::Policy;
use throng_plan::Load;
use throng_plan::fleet::{FleetPlan, Layout, Setup};
use throng_plan::replica::Role;
use throng_plan::simulate::{self, PERCENTILES, Settings, Simulated};

use super::view::{SimulationView, TimelineView, TimesView};
use crate::args::PlanArgs;

/// Number of runs with different seeds.
const N_RUNS: u32 = 3;

/// Simulates a fleet for this number of seconds.
///
/// # Errors
/// When it computes prompts apart, or a number is invalid.
pub fn simulated(
    arguments: &PlanArgs,
    setup: &Setup,
    plan: &FleetPlan,
    load: &Load,
    seconds: f64,
) -> Result<SimulationView> {
    if plan.layout == Layout::Apart {
        anyhow::bail!(
            "--simulate: prompts that are computed apart are not simulated, only planned in closed form"
        );
    }
    let replica = setup.replica(load, Role::Both)?;
    let settings = Settings {
        seconds,
        n_runs: N_RUNS,
        seed: arguments.seed,
        policy: arguments.routing.unwrap_or_default(),
        n_lost: arguments.lose,
        inter_token_target_ms: arguments.gap_ms.map(|ms| ms.max(1.0) as u32),
        is_direct: false,
        n_threads: thread::available_parallelism().map_or(1, usize::from),
    };
    let n_replicas = plan.n_replicas + plan.n_spare;
    Ok(view(simulate::simulate(&replica, n_replicas, load, &settings)?, settings.policy, load))
}

fn view(simulated: Simulated, policy: Policy, load: &Load) -> SimulationView {
    let report = &simulated.report;
    let scale = simulated.of_replicas as f64 / simulated.n_replicas as f64;
    let (first_p99, first_spread) = simulated.first_token_p99;
    let (gap_p99, gap_spread) = simulated.gap_p99;
    let about = format!(
        "{} of {} replicas, {:.1} requests/s each, {} routing, {} runs of {:.0} s",
        simulated.n_replicas,
        simulated.of_replicas,
        load.requests_per_s / simulated.of_replicas as f64,
        policy.name(),
        simulated.n_runs,
        simulated.seconds,
    );
    SimulationView {
        about,
        replicas: simulated.n_replicas,
        of_replicas: simulated.of_replicas,
        runs: simulated.n_runs,
        requests: report.n_requests,
        first_token: TimesView { mean_ms: report.first_token.mean_ms, p99_ms: first_p99 },
        first_token_p99_spread: first_spread,
        gap: TimesView { mean_ms: report.gap.mean_ms, p99_ms: gap_p99 },
        gap_p99_spread: gap_spread,
        output_tokens_per_s: simulated.output_tokens_per_s * scale,
        events: report.totals.n_events,
        percentiles: PERCENTILES.to_vec(),
        first_token_ms: simulated.first_token,
        gaps_ms: simulated.gaps,
        answers_ms: simulated.answers,
        timeline: simulated
            .timeline
            .iter()
            .map(|point| TimelineView {
                at_s: point.at_s,
                waiting: point.n_waiting,
                running: point.n_running,
                kv_cache_used: point.cache_share,
                busy: point.busy_share,
            })
            .collect(),
    }
}
