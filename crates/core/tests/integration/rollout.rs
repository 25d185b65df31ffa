//! Roll-outs in random schedules of requests that end late and in any order: a good version takes over, a bad
//! one is sent back in its first stage, nobody who went to the new version is sent to the old one and back,
//! and planted bugs are found. A failing seed prints the command that repeats it.

use std::sync::Arc;

use fastrand::Rng;
use throng_core::fleet::rollout::{Cause, Outcome, Plan, Progress, Rollout, Stage, Times, Version};
use throng_core::time::{Nanos, Timestamp};

const N_SCHEDULES: u64 = 20_000;
const MAX_REQUESTS: usize = 4_000;
const STEP: Nanos = Nanos::from_ms(100);

/// Mistakes that a user of a roll-out could make, and that this test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// Failures are told as answers.
    SilentFailures,
    /// The versions are taken for each other where outcomes are told.
    SwappedVersions,
    /// Times are not told.
    SilentTimes,
    /// The clock of the caller stands still.
    NoTime,
    /// A wrong golden answer is not told.
    SilentGolden,
    /// Requests are divided anew each time instead of by their places.
    Unsticky,
}

const BUGS: [Bug; 6] = [
    Bug::SilentFailures,
    Bug::SwappedVersions,
    Bug::SilentTimes,
    Bug::NoTime,
    Bug::SilentGolden,
    Bug::Unsticky,
];

/// What the new version is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    Good,
    Fails,
    SlowFirstTokens,
    SlowTokens,
    AnswersOtherwise,
}

const TRUTHS: [Truth; 5] =
    [Truth::Good, Truth::Fails, Truth::SlowFirstTokens, Truth::SlowTokens, Truth::AnswersOtherwise];

fn plan(rng: &mut Rng) -> Plan {
    let n_stages = rng.usize(1..5);
    let mut percents: Vec<u32> = (0..n_stages)
        .map(|_| rng.u32(5..=100))
        .map(|percent| if percent > 95 { 100 } else { percent })
        .collect();
    percents.sort_unstable();
    percents.dedup();
    let stage = |percent| Stage { percent, hold: Nanos::from_ms(rng.u64(..3_000)) };
    let stages = percents.into_iter().map(stage).collect();
    Plan { has_golden: rng.bool(), min_outcomes: rng.u32(1..30), ..Plan::of(stages) }
}

/// How a request of a version ends.
fn outcome(rng: &mut Rng, version: Version, truth: Truth) -> Outcome {
    let is_new = version == Version::New;
    if is_new && truth == Truth::Fails {
        return Outcome::Failed;
    }
    // Answers of one version differ by less than what counts as slow.
    let time = |rng: &mut Rng, ms: u64, is_slow: bool| {
        Some(Nanos::from_ms(rng.u64(ms..ms + ms / 4) * if is_slow { 5 } else { 1 }))
    };
    let first_token = time(rng, 100, is_new && truth == Truth::SlowFirstTokens);
    let per_token = time(rng, 20, is_new && truth == Truth::SlowTokens);
    Outcome::Answered(Times { first_token, per_token })
}

fn expected(truth: Truth) -> Progress {
    match truth {
        Truth::Good => Progress::Completed,
        Truth::Fails => Progress::RolledBack(Cause::Failures),
        Truth::SlowFirstTokens => Progress::RolledBack(Cause::SlowFirstTokens),
        Truth::SlowTokens => Progress::RolledBack(Cause::SlowTokens),
        Truth::AnswersOtherwise => Progress::RolledBack(Cause::Golden),
    }
}

/// What is wrong with one schedule.
fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut plan = plan(&mut rng);
    plan.check().map_err(|fault| fault.to_string())?;
    let truth = TRUTHS[rng.usize(..TRUTHS.len())];
    plan.has_golden |= truth == Truth::AnswersOtherwise;
    // Slowness shows where both versions are asked.
    if matches!(truth, Truth::SlowFirstTokens | Truth::SlowTokens) {
        plan.stages.retain(|stage| (5..=95).contains(&stage.percent));
        if plan.stages.is_empty() {
            plan.stages.push(Stage { percent: 20, hold: Nanos::from_ms(500) });
        }
    }
    let has_golden = plan.has_golden;
    let plan = Arc::new(plan);
    let mut now = Timestamp::from_ns(0);
    let mut rollout = Rollout::new(plan.clone(), now);
    let golden_at = rng.usize(..50);
    let (mut running, mut n_new) = (Vec::new(), 0);
    let mut percent_before = 0;
    for number in 0..MAX_REQUESTS {
        if bug != Some(Bug::NoTime) {
            now = now + Nanos(rng.u64(..2 * STEP.0));
        }
        if has_golden && number == golden_at {
            let is_right = truth != Truth::AnswersOtherwise || bug == Some(Bug::SilentGolden);
            rollout.golden(is_right, now);
        }
        if has_golden && number < golden_at && rollout.percent() > 0 {
            return Err("it gets requests before its golden answers".to_owned());
        }
        let point = rng.u64(..);
        let version = rollout.version_at(point);
        let told = if bug == Some(Bug::Unsticky) {
            rollout.version_at(rng.u64(..))
        } else {
            rollout.version_at(point)
        };
        if told != version {
            return Err("a session changes its version".to_owned());
        }
        n_new += usize::from(version == Version::New);
        running.push((version, outcome(&mut rng, version, truth)));
        // Requests end in any order, some very late.
        while running.len() > 1 && rng.u8(..4) > 0 {
            let (version, outcome) = running.swap_remove(rng.usize(..running.len()));
            let (version, outcome) = told_as(bug, version, outcome);
            rollout.ended(version, outcome, now);
            check_step(&rollout, &plan, &mut percent_before)?;
        }
        if !matches!(rollout.progress(), Progress::Running { .. }) {
            break;
        }
    }
    let (progress, expected) = (rollout.progress(), expected(truth));
    if progress != expected {
        return Err(format!(
            "{truth:?}: {progress:?} instead of {expected:?} after {n_new} requests of the new version"
        ));
    }
    // Failures are noticed as soon as so many have ended as must; others run then.
    if truth == Truth::Fails && percent_before > plan.stages[0].percent {
        return Err("a version that always fails came to its second stage".to_owned());
    }
    for outcome in [Outcome::Failed, Outcome::Answered(Times::default())] {
        (0..100).for_each(|_| rollout.ended(Version::New, outcome, now));
    }
    rollout.golden(false, now);
    rollout.abort();
    if rollout.progress() == progress { Ok(()) } else { Err("it goes on after its end".to_owned()) }
}

fn told_as(bug: Option<Bug>, version: Version, outcome: Outcome) -> (Version, Outcome) {
    match (bug, version, outcome) {
        (Some(Bug::SilentFailures), _, Outcome::Failed) => (version, Outcome::Answered(Times::default())),
        (Some(Bug::SwappedVersions), Version::New, _) => (Version::Old, outcome),
        (Some(Bug::SwappedVersions), Version::Old, _) => (Version::New, outcome),
        (Some(Bug::SilentTimes), _, Outcome::Answered(_)) => (version, Outcome::Answered(Times::default())),
        _ => (version, outcome),
    }
}

/// The share is one of the plan's and never falls but to nothing at all, for good.
fn check_step(rollout: &Rollout, plan: &Plan, before: &mut u32) -> Result<(), String> {
    let percent = rollout.percent();
    let is_planned = plan.stages.iter().any(|stage| stage.percent == percent);
    match rollout.progress() {
        Progress::Running { .. } if percent == 0 && plan.has_golden => {}
        Progress::Running { .. } if is_planned && percent >= *before => *before = percent,
        Progress::Completed if percent == 100 => {}
        Progress::RolledBack(_) if percent == 0 => {}
        progress => return Err(format!("{percent} after {before} with {progress:?}")),
    }
    Ok(())
}

#[test]
fn good_versions_take_over_and_bad_ones_go_back() {
    let seed = std::env::var("THRONG_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = seed.map_or(0..N_SCHEDULES, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(fault) = run(seed, None) {
            panic!("{fault}; THRONG_SEED={seed} cargo test -p throng-core --test integration rollout");
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let found = (0..1_000).find_map(|seed| run(seed, Some(bug)).err().map(|fault| (seed, fault)));
        let (seed, fault) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?} is found with seed {seed}: {fault}");
    }
}
