//! A fleet whose size the product's autoscaler determines over a day, beside a fleet of fixed size, under the
//! virtual clock of `throng-sim`.
//!
//! For a large fleet only a part is simulated: the same part of the requests, of the bounds and of the
//! replicas.

use std::sync::Arc;

use throng_core::fleet::autoscale::AutoscaleConfig;
use throng_core::fleet::overload::GateConfig;
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::SimError;
use throng_sim::fleet::{ClientConfig, FleetConfig};
use throng_sim::outcome::ScaleSample;
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::{ScalingConfig, Simulation};
use throng_sim::sweep;
use throng_sim::workload::{TimedRequest, Workload, content_id};

use crate::error::{PlanError, positive, share};
use crate::load::{Length, Load};
use crate::replica::Replica;
use crate::simulate::{Settings, failed, fleet, nanos};

/// Times within an hour that a policy may turn round between growing and shrinking.
const MAX_TURNS_AN_HOUR: usize = 6;

/// Maximum number of replicas that are simulated.
const MAX_REPLICAS: u32 = 64;

/// Maximum number of retries of clients that found no replica, with pauses of 1 s, 2 s, 4 s and so on.
const MAX_RETRIES: u32 = 8;

/// Nanoseconds of the interval whose rate counts as that of the busiest time.
const BUSIEST_NS: u64 = 300_000_000_000;

/// Kind of the identities that select a share of recorded requests.
const RECORDED: u64 = 61;

/// Number of points of a timeline.
const TIMELINE_POINTS: usize = 240;

/// Number of seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// A policy, and how fast a fleet follows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPolicy {
    /// Bounds and targets of the autoscaler.
    pub autoscale: AutoscaleConfig,
    /// Seconds between two decisions.
    pub interval_s: f64,
    /// Seconds from the decision for a replica until it answers.
    pub start_up_s: f64,
}

/// Recorded requests, of which a random part is sent. The same share selects the same requests.
#[derive(Debug)]
pub struct RecordedDay {
    requests: Arc<[TimedRequest]>,
    next: usize,
    part: f64,
}

impl RecordedDay {
    /// A part of some requests, which are in order of time.
    pub fn new(requests: Arc<[TimedRequest]>, part: f64) -> Self {
        Self { requests, next: 0, part }
    }
}

impl Workload for RecordedDay {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        let is_sent =
            |index: &usize| content_id(0, RECORDED, *index as u64) as f64 <= self.part * u64::MAX as f64;
        let Some(index) = (self.next..self.requests.len()).find(is_sent) else { return Ok(None) };
        self.next = index + 1;
        Ok(Some(self.requests[index].clone()))
    }
}

/// The load of recorded requests: their mean lengths, and the rate of their busiest five minutes.
///
/// # Errors
/// When there is no request.
pub fn load_of(requests: &[TimedRequest]) -> Result<Load, PlanError> {
    let length = |of: fn(&TimedRequest) -> u32| {
        let n = requests.len() as f64;
        let mean = requests.iter().map(|timed| f64::from(of(timed))).sum::<f64>() / n;
        let variance = requests.iter().map(|timed| (f64::from(of(timed)) - mean).powi(2)).sum::<f64>() / n;
        let most = requests.iter().map(of).max().map(f64::from);
        Length { mean, variation: variance.sqrt() / mean, most }
    };
    let part_of = |timed: &TimedRequest| timed.at.as_ns() / BUSIEST_NS;
    let busiest = requests.chunk_by(|a, b| part_of(a) == part_of(b)).map(<[TimedRequest]>::len).max();
    let lasting = requests.last().map_or(0, |last| last.at.as_ns()).clamp(1_000_000_000, BUSIEST_NS);
    let load = Load {
        requests_per_s: busiest.unwrap_or(0) as f64 / (lasting as f64 * 1e-9),
        prompt: length(|timed| timed.request.n_prompt_tokens()),
        output: length(|timed| timed.request.output.n_tokens),
        cached_share: 0.0,
        host_cached_share: 0.0,
    };
    load.check()?;
    Ok(load)
}

/// A fleet for a day.
#[derive(Debug, Clone)]
pub struct DayFleet<'a> {
    /// A replica of the fleet.
    pub replica: &'a Replica,
    /// The load at the busiest time.
    pub load: Load,
    /// Number of replicas of the fleet of fixed size.
    pub n_fixed: u64,
    /// Part of the fleet that is simulated, above 0 and at most 1.
    pub part: f64,
}

/// Outcome of a day on one fleet. Numbers of replicas are those of the whole fleet.
#[derive(Debug, Clone)]
pub struct DayRun {
    /// Mean number of running replicas, including those that are starting or ending.
    pub mean_replicas: f64,
    /// Largest number of replicas.
    pub most_replicas: f64,
    /// Hours of all replicas together.
    pub replica_hours: f64,
    /// Requests without a whole answer, in parts of all.
    pub failed_share: f64,
    /// The report of the simulation.
    pub report: Report,
}

/// Changes of direction of the desired number of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Turns {
    /// Number of changes of the desired number.
    pub n_changes: usize,
    /// Number of changes from growing to shrinking or back.
    pub n_turns: usize,
    /// Largest number of turns within an hour.
    pub most_an_hour: usize,
    /// Seconds until that hour begins.
    pub hour_from_s: f64,
}

/// A point of the timeline, in replicas of the whole fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalePoint {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Desired number of replicas.
    pub desired: f64,
    /// Replicas that take requests.
    pub serving: f64,
    /// Number of running sequences.
    pub running: f64,
    /// Number of waiting sequences.
    pub waiting: f64,
}

/// A day with the autoscaler, and the same day without.
#[derive(Debug, Clone)]
pub struct Autoscaled {
    /// The fleet that the autoscaler sizes.
    pub scaled: DayRun,
    /// The fleet of fixed size.
    pub fixed: DayRun,
    /// Changes of direction of the desired number.
    pub turns: Turns,
    /// Times that the fleet grew from no replica.
    pub n_from_zero: usize,
    /// Times that requests found no replica, retries included.
    pub n_unserved: u64,
    /// Numbers of replicas over time.
    pub timeline: Vec<ScalePoint>,
}

impl ScalingPolicy {
    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the first one that is invalid.
    pub fn check(&self) -> Result<(), PlanError> {
        let AutoscaleConfig {
            min_replicas, max_replicas, target_sequences, target_kv_use, target_ttft, ..
        } = self.autoscale;
        if max_replicas == 0 || min_replicas > max_replicas {
            let expected = "expected at least 1 and the minimum";
            return Err(PlanError::value("the maximum of replicas", max_replicas, expected));
        }
        positive("the target of sequences", f64::from(target_sequences))?;
        positive("the target of the first token", target_ttft.as_secs_f64())?;
        positive("the target of the KV cache", target_kv_use)?;
        share("the target of the KV cache", target_kv_use)?;
        positive("seconds between two decisions", self.interval_s)?;
        crate::error::not_negative("seconds of a start", self.start_up_s).map(|_| ())
    }

    /// The policy for a part of the fleet.
    fn of_part(&self, part: f64) -> Result<AutoscaleConfig, PlanError> {
        let scaled = |n: u32| (f64::from(n) * part).ceil() as u32;
        let max_replicas = scaled(self.autoscale.max_replicas);
        if max_replicas > MAX_REPLICAS {
            let expected = "expected at most 64 that are simulated; simulate a smaller part of the fleet";
            return Err(PlanError::value("the maximum of replicas", max_replicas, expected));
        }
        let min_replicas = scaled(self.autoscale.min_replicas);
        Ok(AutoscaleConfig { min_replicas, max_replicas, ..self.autoscale })
    }

    /// Checks that a policy did not turn round too often.
    ///
    /// # Errors
    /// When it did; the error names the policy and the hour.
    pub fn check_turns(&self, turns: &Turns) -> Result<(), PlanError> {
        if turns.most_an_hour <= MAX_TURNS_AN_HOUR {
            return Ok(());
        }
        let AutoscaleConfig { target_sequences, up_cooldown, down_cooldown, .. } = self.autoscale;
        Err(PlanError::Oscillates {
            policy: format!(
                "target_sequences = {target_sequences}, up_cooldown_s = {}, down_cooldown_s = {}",
                up_cooldown.as_secs_f64(),
                down_cooldown.as_secs_f64()
            ),
            n_turns: turns.most_an_hour,
            from_h: turns.hour_from_s / HOUR_S,
            most: MAX_TURNS_AN_HOUR,
        })
    }
}

/// Runs a day with the autoscaler and on a fleet of fixed size, on two threads if the settings allow that.
/// `day` returns the requests of a share of the load; it is called once for each fleet.
///
/// # Errors
/// When a number is invalid, or the requests cannot be read.
pub fn simulate_day(
    day_fleet: &DayFleet<'_>,
    policy: &ScalingPolicy,
    settings: &Settings,
    day: impl Fn(f64) -> Result<Box<dyn Workload>, SimError> + Sync,
) -> Result<Autoscaled, PlanError> {
    policy.check()?;
    let DayFleet { replica, part, n_fixed, .. } = *day_fleet;
    positive("the simulated part", part)?;
    share("the simulated part", part)?;
    if replica.n_lanes > 1 {
        let expected = "expected 1 where an autoscaler is simulated";
        return Err(PlanError::value("pipeline parallelism", replica.n_lanes, expected));
    }
    let autoscale = policy.of_part(part)?;
    let n_fixed = (n_fixed as f64 * part).round().clamp(1.0, f64::from(MAX_REPLICAS)) as u32;
    let scaling = ScalingConfig {
        autoscale,
        interval: nanos(policy.interval_s),
        start_up: nanos(policy.start_up_s),
        n_initial: autoscale.min_replicas,
    };
    let run = |n: u32, scaling: Option<ScalingConfig>| -> Result<Report, SimError> {
        let mut simulation = Simulation::new(day_config(day_fleet, n, settings), day(part)?, settings.seed)?;
        if let Some(scaling) = scaling {
            simulation = simulation.with_scaling(scaling)?;
        }
        let mut report = ReportBuilder::new(Objective::default(), Nanos(0));
        let totals = simulation.run(&mut report)?;
        Ok(report.finish(totals))
    };
    let fleets = [(autoscale.max_replicas, Some(scaling)), (n_fixed, None)];
    let mut runs = sweep::run(&fleets, settings.n_threads, |(n, scaling)| run(*n, *scaling)).into_iter();
    let mut next = || runs.next().expect("a run of each fleet").map_err(failed);
    let (scaled, fixed) = (next()?, next()?);
    let samples = &scaled.scaling;
    let mean =
        samples.iter().map(|sample| f64::from(sample.n_paid)).sum::<f64>() / samples.len().max(1) as f64;
    let most = samples.iter().map(|sample| sample.n_paid).max().unwrap_or(0);
    Ok(Autoscaled {
        turns: turns(samples),
        n_from_zero: samples
            .windows(2)
            .filter(|pair| pair[0].n_desired == 0 && pair[1].n_desired > 0)
            .count(),
        n_unserved: samples.last().map_or(0, |sample| sample.n_unserved),
        timeline: timeline(samples, part),
        scaled: DayRun::new(scaled, mean / part, f64::from(most) / part),
        fixed: DayRun::new(fixed, f64::from(n_fixed) / part, f64::from(n_fixed) / part),
    })
}

impl DayRun {
    fn new(report: Report, mean_replicas: f64, most_replicas: f64) -> Self {
        let hours = report.totals.end_ns as f64 * 1e-9 / HOUR_S;
        let n_whole: u64 = report.ends.iter().filter(|(end, _)| end.is_whole()).map(|(_, n)| n).sum();
        Self {
            mean_replicas,
            most_replicas,
            replica_hours: mean_replicas * hours,
            failed_share: 1.0 - n_whole as f64 / report.n_requests.max(1) as f64,
            report,
        }
    }
}

/// Configuration of a fleet whose clients repeat a request when there is no replica. The gate refuses no
/// request: it predicts waits.
fn day_config(day_fleet: &DayFleet<'_>, n_replicas: u32, settings: &Settings) -> FleetConfig {
    let DayFleet { replica, load, .. } = day_fleet;
    let mut config = fleet(replica, n_replicas as usize, load, settings);
    config.gateway.overload = Some(GateConfig { max_wait: Nanos(u64::MAX / 4) });
    config.clients = ClientConfig { max_retries: MAX_RETRIES, ..ClientConfig::default() };
    config
}

/// Changes of direction of the desired number.
fn turns(samples: &[ScaleSample]) -> Turns {
    let mut turns = Turns::default();
    let mut last_grew = None;
    let mut at_s: Vec<f64> = Vec::new();
    for pair in samples.windows(2) {
        if pair[0].n_desired == pair[1].n_desired {
            continue;
        }
        turns.n_changes += 1;
        let grew = pair[1].n_desired > pair[0].n_desired;
        if last_grew.replace(grew).is_some_and(|before| before != grew) {
            at_s.push(pair[1].at_ns as f64 * 1e-9);
        }
    }
    turns.n_turns = at_s.len();
    for (first, from_s) in at_s.iter().enumerate() {
        let n = at_s[first..].iter().take_while(|at| **at < from_s + HOUR_S).count();
        if n > turns.most_an_hour {
            (turns.most_an_hour, turns.hour_from_s) = (n, *from_s);
        }
    }
    turns
}

/// Evenly spaced samples, in numbers of the whole fleet.
fn timeline(samples: &[ScaleSample], part: f64) -> Vec<ScalePoint> {
    let point = |sample: &ScaleSample| ScalePoint {
        at_s: sample.at_ns as f64 * 1e-9,
        desired: f64::from(sample.n_desired) / part,
        serving: f64::from(sample.n_serving) / part,
        running: sample.n_running as f64 / part,
        waiting: sample.n_waiting as f64 / part,
    };
    samples.iter().step_by(samples.len().div_ceil(TIMELINE_POINTS).max(1)).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(desired: &[u32]) -> Vec<ScaleSample> {
        let sample = |(i, n): (usize, &u32)| ScaleSample {
            at_ns: i as u64 * 600_000_000_000,
            n_desired: *n,
            n_serving: *n,
            n_paid: *n,
            n_running: 0,
            n_waiting: 0,
            n_unserved: 0,
        };
        desired.iter().enumerate().map(sample).collect()
    }

    #[test]
    fn turns_are_changes_of_direction_and_the_worst_hour_has_most() {
        let day = turns(&samples(&[1, 2, 3, 3, 5, 4, 2, 2, 1]));
        assert_eq!((day.n_changes, day.n_turns, day.most_an_hour), (6, 1, 1));
        // Every ten minutes another direction, from the second sample on.
        let nervous = turns(&samples(&[1, 2, 1, 2, 1, 2, 1, 2, 1, 2]));
        assert_eq!((nervous.n_changes, nervous.n_turns, nervous.most_an_hour), (9, 8, 6));
        assert_eq!(nervous.hour_from_s, 1200.0);
        assert_eq!(turns(&samples(&[3])), Turns::default());
    }
}
