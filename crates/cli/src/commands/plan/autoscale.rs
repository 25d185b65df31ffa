//! `throng plan autoscale`: a day of requests with the gateway's autoscaling policy, beside the planned fleet
//! of fixed size.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, bail};
use throng_core::fleet::autoscale::AutoscaleConfig;
use throng_core::time::Nanos;
use throng_plan::autoscale::{Autoscaled, DayFleet, DayRun, RecordedDay, ScalingPolicy, simulate_day};
use throng_plan::fleet::{FleetPlan, Layout};
use throng_plan::replica::Role;
use throng_plan::simulate::{self, Settings};
use throng_sim::workload::{TimedRequest, Workload};

use super::recorded::recorded_load;
use super::view::{AutoscaleView, DayRunView, ScalePointView, TimesView};
use super::{Answered, answer, load_of, model, print, setups, view_of, write_page};
use crate::args::{AutoscalePolicyArgs, PlanAutoscaleArgs};
use crate::process::output;

/// Replicas of the planned fleet that are simulated.
const SIMULATED_REPLICAS: f64 = 8.0;

/// Longest described day in hours.
const MAX_HOURS: f64 = 168.0;

/// Runs the command.
///
/// # Errors
/// When the arguments are invalid, no fleet meets the load, or the policy oscillates.
pub fn run(arguments: &PlanAutoscaleArgs) -> Result<()> {
    let (plan_arguments, requests) = recorded_load(&arguments.plan)?;
    if plan_arguments.simulate.is_some() || plan_arguments.vary.is_some() || plan_arguments.list_machines {
        bail!("throng plan autoscale takes none of --simulate, --vary and --list-machines");
    }
    let catalogue = setups::catalogue(&plan_arguments)?;
    let planned = model::planned(&plan_arguments)?;
    let answered = answer(&plan_arguments, &catalogue, &planned)?;
    let mut plan = view_of(&plan_arguments, &catalogue, &planned, &answered);
    let scaled = match answered.answers.plans.first() {
        Some((idx, best)) => Some(scaled(arguments, &answered, *idx, best, requests)?),
        None => None,
    };
    let policy = policy(&arguments.policy, 1);
    let turns = scaled.as_ref().map(|(_, outcome)| outcome.turns);
    plan.autoscale = scaled.map(|(view, _)| view);
    write_page(&plan_arguments, &plan)?;
    if plan_arguments.json {
        output::line(serde_json::to_string(&plan)?)?;
    } else {
        print(&plan, plan_arguments.top)?;
    }
    match turns {
        Some(turns) => Ok(policy.check_turns(&turns)?),
        None => bail!("no machine serves this model and load: see the reasons above"),
    }
}

/// The policy for a fleet of this many planned replicas.
fn policy(arguments: &AutoscalePolicyArgs, n_planned: u64) -> ScalingPolicy {
    let seconds = |s: u64| Nanos::from_ms(s.saturating_mul(1000));
    let twice = u32::try_from(n_planned.saturating_mul(2)).unwrap_or(u32::MAX);
    ScalingPolicy {
        autoscale: AutoscaleConfig {
            min_replicas: arguments.min_replicas,
            max_replicas: arguments.max_replicas.unwrap_or(twice.max(arguments.min_replicas)),
            target_sequences: arguments.target_sequences,
            target_kv_use: arguments.target_kv_use,
            target_ttft: Nanos::from_ms(arguments.target_wait_ms),
            up_cooldown: seconds(arguments.up_cooldown_s),
            down_cooldown: seconds(arguments.down_cooldown_s),
            idle: seconds(arguments.idle_s),
        },
        interval_s: arguments.interval_s,
        start_up_s: arguments.start_up_s,
    }
}

fn scaled(
    arguments: &PlanAutoscaleArgs,
    answered: &Answered,
    idx: usize,
    best: &FleetPlan,
    requests: Option<Arc<[TimedRequest]>>,
) -> Result<(AutoscaleView, Autoscaled)> {
    if best.layout == Layout::Apart {
        bail!("prompts that are computed apart are not simulated, only planned in closed form");
    }
    if !(arguments.hours > 0.0 && arguments.hours <= MAX_HOURS) {
        bail!("--hours is {}: expected a number above 0, at most {MAX_HOURS}", arguments.hours);
    }
    let load = load_of(&answered.question, best);
    let replica = answered.setups[idx].replica(&load, Role::Both)?;
    let n_planned = best.n_replicas + best.n_spare;
    let part = arguments.part.unwrap_or((SIMULATED_REPLICAS / n_planned as f64).min(1.0));
    let settings = Settings {
        seconds: arguments.hours * 3600.0,
        n_runs: 1,
        seed: arguments.plan.seed,
        policy: arguments.plan.routing.unwrap_or_default(),
        n_lost: 0,
        inter_token_target_ms: arguments.plan.gap_ms.map(|ms| ms.max(1.0) as u32),
        is_direct: false,
        n_threads: thread::available_parallelism().map_or(1, usize::from),
    };
    let day_fleet = DayFleet { replica: &replica, load, n_fixed: n_planned, part };
    let peak_factor = arguments.plan.load.peak_factor;
    let policy = policy(&arguments.policy, n_planned);
    if requests.is_none() {
        let n = (load.requests_per_s * part * settings.seconds).round();
        let tip = if arguments.hours > 1.0 { "; --hours 1 takes less time" } else { "" };
        output::note(format_args!(
            "simulating {} h with up to {n} requests for each fleet{tip}",
            arguments.hours
        ));
    }
    let outcome = simulate_day(&day_fleet, &policy, &settings, |part| {
        Ok(match &requests {
            Some(requests) => Box::new(RecordedDay::new(Arc::clone(requests), part)) as Box<dyn Workload>,
            None => {
                let load = load.at(load.requests_per_s * part);
                let context = replica.model.max_sequence_tokens;
                Box::new(simulate::day(&load, peak_factor, context, settings.seconds, settings.seed)?)
            }
        })
    })?;
    let price = best.price_per_hour.map(|price| price / n_planned as f64);
    Ok((view(&outcome, part, price), outcome))
}

fn view(outcome: &Autoscaled, part: f64, price_of_replica: Option<f64>) -> AutoscaleView {
    let run = |name: &str, run: &DayRun| DayRunView {
        name: name.to_owned(),
        mean_replicas: run.mean_replicas,
        most_replicas: run.most_replicas,
        replica_hours: run.replica_hours,
        price: price_of_replica.map(|price| price * run.replica_hours),
        first_token_p50_ms: run.report.first_token.p50_ms,
        first_token: TimesView {
            mean_ms: run.report.first_token.mean_ms,
            p99_ms: run.report.first_token.p99_ms,
        },
        gap: TimesView { mean_ms: run.report.gap.mean_ms, p99_ms: run.report.gap.p99_ms },
        failed_share: run.failed_share,
    };
    AutoscaleView {
        part,
        requests: outcome.scaled.report.n_requests,
        fleets: vec![run("autoscaled", &outcome.scaled), run("fixed", &outcome.fixed)],
        changes: outcome.turns.n_changes,
        turns: outcome.turns.n_turns,
        most_turns_an_hour: outcome.turns.most_an_hour,
        starts_from_zero: outcome.n_from_zero,
        unserved: outcome.n_unserved,
        timeline: outcome
            .timeline
            .iter()
            .map(|point| ScalePointView {
                at_s: point.at_s,
                desired: point.desired,
                serving: point.serving,
                running: point.running,
                waiting: point.waiting,
            })
            .collect(),
    }
}
