//! Days with the autoscaler beside days with a fixed number of replicas.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::autoscale::AutoscaleConfig;
use throng_core::fleet::routing::Policy;
use throng_core::time::{Nanos, Timestamp};
use throng_plan::autoscale::{Autoscaled, DayFleet, RecordedDay, ScalingPolicy, load_of, simulate_day};
use throng_plan::cost::StepCost;
use throng_plan::load::Length;
use throng_plan::replica::Role;
use throng_plan::simulate::{Settings, day};
use throng_plan::{Load, PlanError, Replica};
use throng_sim::SimError;
use throng_sim::cost::{CostModel, StepShape};
use throng_sim::workload::{SimRequest, Span, TimedRequest, Workload};

use crate::fleets::setup;
use crate::models;

/// Seconds of a day here.
const DAY_S: f64 = 900.0;

/// Steps of 50 ms, whatever is in them.
#[derive(Debug)]
struct EvenSteps;

impl CostModel for EvenSteps {
    fn step_time(&self, _: &StepShape) -> Duration {
        Duration::from_millis(50)
    }
}

impl StepCost for EvenSteps {
    fn check_range(&self, _: &StepShape) -> Result<(), PlanError> {
        Ok(())
    }
}

/// Answers of 2.5 s: 15 requests a second keep three replicas of 12 sequences busy.
fn peak() -> Load {
    Load {
        requests_per_s: 15.0,
        prompt: Length::constant(64.0),
        output: Length::constant(50.0),
        cached_share: 0.0,
        host_cached_share: 0.0,
    }
}

fn replica() -> Replica {
    let replica = setup("h100", models::llama_8b(), 1).replica(&peak(), Role::Both).expect("fits");
    let mut replica = Replica { cost: Arc::new(EvenSteps), ..replica };
    replica.batching.max_sequences = 16;
    replica
}

fn policy() -> ScalingPolicy {
    let autoscale = AutoscaleConfig {
        max_replicas: 6,
        target_sequences: 12,
        down_cooldown: Nanos::from_ms(120_000),
        ..AutoscaleConfig::default()
    };
    ScalingPolicy { autoscale, interval_s: 5.0, start_up_s: 20.0 }
}

/// A request at a time in milliseconds.
fn request(n: u64, at_ms: u64) -> TimedRequest {
    let span = |content, n_tokens| Span { content, n_tokens };
    let request = SimRequest::new([span(n, 40)], span(n, 10));
    TimedRequest { at: Timestamp::from_ns(at_ms * 1_000_000), request, tag: n }
}

fn run_of(
    policy: &ScalingPolicy,
    day: impl Fn(f64) -> Result<Box<dyn Workload>, SimError> + Sync,
) -> Autoscaled {
    let settings = Settings {
        seconds: DAY_S,
        n_runs: 1,
        seed: 3,
        policy: Policy::default(),
        n_lost: 0,
        inter_token_target_ms: None,
        is_direct: false,
        n_threads: 1,
    };
    let day_fleet = DayFleet { replica: &replica(), load: peak(), n_fixed: 4, part: 1.0 };
    simulate_day(&day_fleet, policy, &settings, day).expect("a day")
}

fn run(policy: &ScalingPolicy) -> Autoscaled {
    run_of(policy, |part| {
        let load = peak().at(peak().requests_per_s * part);
        Ok(Box::new(day(&load, 3.0, 8192, DAY_S, 3)?))
    })
}

#[test]
fn a_scaled_fleet_follows_the_day_with_fewer_replica_hours() {
    let day = run(&policy());
    let (scaled, fixed) = (&day.scaled, &day.fixed);
    assert_eq!((fixed.mean_replicas, fixed.most_replicas), (4.0, 4.0));
    assert!(scaled.most_replicas >= 3.0 && scaled.mean_replicas < 3.0, "{scaled:?}");
    assert!(scaled.replica_hours < fixed.replica_hours);
    assert_eq!((scaled.failed_share, fixed.failed_share), (0.0, 0.0));
    assert_eq!(scaled.report.n_requests, fixed.report.n_requests, "both have the same requests");
    assert!(scaled.report.first_token.p99_ms >= fixed.report.first_token.p99_ms);
    let noon = day.timeline.iter().filter(|point| (400.0..600.0).contains(&point.at_s));
    let night = day.timeline.iter().filter(|point| point.at_s < 100.0);
    let most = |points: &mut dyn Iterator<Item = f64>| points.fold(0.0, f64::max);
    assert!(most(&mut noon.map(|point| point.serving)) > most(&mut night.map(|point| point.serving)));
    assert_eq!(run(&policy()).scaled.report, scaled.report, "a seed repeats it");
    policy().check_turns(&day.turns).expect("it does not oscillate");
}

/// Without requests there is no replica; the first ones ask again until one has started.
#[test]
fn a_fleet_grows_from_no_replica() {
    let mut policy = policy();
    (policy.autoscale.min_replicas, policy.autoscale.idle) = (0, Nanos::from_ms(10_000));
    let requests: Arc<[TimedRequest]> = (0..200).map(|n| request(n, 300_000 + 200 * n)).collect();
    let day = run_of(&policy, |part| Ok(Box::new(RecordedDay::new(Arc::clone(&requests), part))));
    assert!(day.n_from_zero == 1 && day.n_unserved > 0, "{:?}", day.turns);
    assert!(day.scaled.report.first_token.max_ms > 15_000.0, "the first ones wait for a start");
    assert_eq!(day.scaled.failed_share, 0.0);
}

#[test]
fn a_policy_that_oscillates_is_refused_by_name() {
    let mut policy = policy();
    policy.autoscale.target_sequences = 2;
    policy.autoscale.max_replicas = 20;
    (policy.autoscale.up_cooldown, policy.autoscale.down_cooldown) = (Nanos(0), Nanos(0));
    let day = run(&policy);
    let error = policy.check_turns(&day.turns).expect_err("it oscillates").to_string();
    assert!(
        error.starts_with(
            "the autoscaling policy (target_sequences = 2, up_cooldown_s = 0, down_cooldown_s = 0) oscillates"
        ),
        "{error}"
    );
}

#[test]
fn policies_that_cannot_be_are_refused() {
    let error = |change: fn(&mut ScalingPolicy)| {
        let mut policy = policy();
        change(&mut policy);
        policy.check().expect_err("refused").to_string()
    };
    assert!(error(|policy| policy.autoscale.max_replicas = 0).starts_with("the maximum of replicas is 0"));
    assert!(
        error(|policy| policy.autoscale.target_sequences = 0).starts_with("the target of sequences is 0")
    );
    assert!(error(|policy| policy.autoscale.target_kv_use = 2.0).contains("KV cache is 2"));
    assert!(error(|policy| policy.interval_s = 0.0).starts_with("seconds between two decisions is 0"));
    assert!(error(|policy| policy.start_up_s = f64::NAN).starts_with("seconds of a start is NaN"));
}

#[test]
fn a_part_of_a_recorded_day_is_always_the_same_requests() {
    let requests: Arc<[TimedRequest]> = (0..6_000).map(|n| request(n, 100 * n)).collect();
    let part = |part: f64| {
        let mut day = RecordedDay::new(Arc::clone(&requests), part);
        std::iter::from_fn(|| day.next_request().expect("in memory"))
            .map(|timed| timed.tag)
            .collect::<Vec<_>>()
    };
    assert_eq!(part(1.0).len(), 6_000);
    assert!((1_350..1_650).contains(&part(0.25).len()) && part(0.25) == part(0.25));
    let load = load_of(&requests).expect("requests");
    assert_eq!((load.requests_per_s, load.prompt.mean, load.output.mean), (10.0, 40.0, 10.0));
    assert!(load_of(&[]).is_err());
}
