//! A fleet under the virtual clock of `throng-sim`, with the product's own scheduler and router, for effects
//! that the closed forms leave out, such as queues behind bursts and lost replicas.
//!
//! For a large fleet a few replicas are simulated with their part of the load. Several runs with other seeds
//! show the error of the result.

use std::sync::Arc;
use std::time::Duration;

use throng_core::engine::EngineConfig;
use throng_core::fleet::routing::Policy;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::{LatencyHistogram, LatencySummary, Objective};
use throng_sim::SimError;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{Fault, FleetConfig, ReplicaConfig, SpeculationConfig, Stage};
use throng_sim::outcome::ReplicaSample;
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::Simulation;
use throng_sim::sweep;
use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape};

use crate::cost::StepCost;
use crate::error::{PlanError, positive};
use crate::load::{Length, Load};
use crate::replica::Replica;

/// Token ids of a simulated model, which no duration depends on.
const VOCABULARY: u32 = 32_000;

/// Number of replicas that are simulated of a larger fleet.
const MAX_SIMULATED: u64 = 8;

/// Maximum number of simulated seconds of one run.
const MAX_SECONDS: f64 = 86_400.0;

/// Share of a run, at its beginning, whose requests do not count.
const WARM_UP_SHARE: f64 = 0.1;

/// Percentiles of distributions.
pub const PERCENTILES: [f64; 13] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0];

/// Number of points of a timeline.
const TIMELINE_POINTS: f64 = 120.0;

/// Settings of the simulation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Duration of one run in seconds.
    pub seconds: f64,
    /// Number of runs with different seeds; at least 1.
    pub n_runs: u32,
    /// Seed of the first run.
    pub seed: u64,
    /// Policy of the router.
    pub policy: Policy,
    /// Number of replicas that are lost in the middle of a run, and do not return.
    pub n_lost: u64,
    /// Milliseconds between two tokens that prompts may lengthen a step to; none: as the product's default.
    pub inter_token_target_ms: Option<u32>,
    /// Whether clients send requests to the engine itself, without a gateway and networks between.
    pub is_direct: bool,
    /// Number of threads that runs are spread over. No result depends on it.
    pub n_threads: usize,
}

/// A point of a timeline: the state of all simulated replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TimelinePoint {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Number of waiting requests.
    pub n_waiting: f64,
    /// Number of running sequences.
    pub n_running: f64,
    /// Share of the memory for keys and values that sequences hold.
    pub cache_share: f64,
    /// Share of the time in steps.
    pub busy_share: f64,
}

/// A distribution, as values at [`PERCENTILES`] in milliseconds.
pub type Percentiles = Vec<f64>;

/// Results of some runs.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// Replicas that were simulated.
    pub n_replicas: u64,
    /// Number of replicas that they represent.
    pub of_replicas: u64,
    /// Number of runs.
    pub n_runs: u32,
    /// Seconds in which requests of a run arrive.
    pub seconds: f64,
    /// Output tokens of the first run for each of its seconds after the warm-up, of the simulated replicas.
    pub output_tokens_per_s: f64,
    /// The report of the first run.
    pub report: Report,
    /// First-token times of the first run.
    pub first_token: Percentiles,
    /// Gaps of the first run.
    pub gaps: Percentiles,
    /// Times to the end of answers of the first run.
    pub answers: Percentiles,
    /// Timeline of the first run.
    pub timeline: Vec<TimelinePoint>,
    /// Mean over the runs of the 99th percentile of first-token times in milliseconds, and the largest
    /// distance of a run from it as a share of it.
    pub first_token_p99: (f64, f64),
    /// Mean over the runs of the gaps' 99th percentile in milliseconds, and the largest distance of a run
    /// from it as a share of it.
    pub gap_p99: (f64, f64),
}

/// Simulates `n_replicas` replicas under a load, which is the total of all of them.
///
/// # Errors
/// When a number is invalid, or prompts are computed apart, which this simulation does not have.
pub fn simulate(
    replica: &Replica,
    n_replicas: u64,
    load: &Load,
    settings: &Settings,
) -> Result<Simulated, PlanError> {
    load.check()?;
    positive("replicas", n_replicas as f64)?;
    positive("simulated seconds", settings.seconds)?;
    if settings.seconds > MAX_SECONDS {
        return Err(PlanError::value("simulated seconds", settings.seconds, "expected at most a day"));
    }
    let n_simulated = n_replicas.min(MAX_SIMULATED);
    if settings.n_lost >= n_simulated && settings.n_lost > 0 {
        return Err(PlanError::value("lost replicas", settings.n_lost, "expected fewer than are simulated"));
    }
    let part = load.at(load.requests_per_s * n_simulated as f64 / n_replicas as f64);
    let seeds: Vec<u64> =
        (0..u64::from(settings.n_runs.max(1))).map(|run| settings.seed.wrapping_add(run)).collect();
    let runs =
        sweep::run(&seeds, settings.n_threads, |&seed| run(replica, n_simulated, &part, settings, seed));
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let spread = |of: fn(&LatencySummary) -> f64, which: fn(&Report) -> &LatencySummary| {
        let values: Vec<f64> = runs.iter().map(|(report, _)| of(which(report))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let most = values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max);
        (mean, if mean > 0.0 { most / mean } else { 0.0 })
    };
    let first_token_p99 = spread(|summary| summary.p99_ms, |report| &report.first_token);
    let gap_p99 = spread(|summary| summary.p99_ms, |report| &report.gap);
    let (report, distributions) = runs.into_iter().next().expect("at least one run");
    let [first_token, gaps, answers] = distributions;
    let timeline = timeline(&report.samples, n_simulated);
    Ok(Simulated {
        n_replicas: n_simulated,
        of_replicas: n_replicas,
        n_runs: seeds.len() as u32,
        seconds: settings.seconds,
        // The report divides by a time that lasts until the last answer has ended.
        output_tokens_per_s: report.output_tokens_per_second * report.duration_s
            / (settings.seconds * (1.0 - WARM_UP_SHARE)),
        report,
        first_token,
        gaps,
        answers,
        timeline,
        first_token_p99,
        gap_p99,
    })
}

/// The error of a simulation.
pub(crate) fn failed(error: SimError) -> PlanError {
    PlanError::Malformed { what: "the simulation".to_owned(), reason: error.to_string() }
}

/// Nanoseconds of this number of seconds, clamped to between zero and a year.
pub(crate) fn nanos(seconds: f64) -> Nanos {
    Nanos::from(Duration::from_secs_f64(seconds.clamp(0.0, 365.0 * MAX_SECONDS)))
}

/// A fleet of this many lanes as the simulator has it.
pub(crate) fn fleet(replica: &Replica, n_lanes: usize, load: &Load, settings: &Settings) -> FleetConfig {
    let mut fleet = FleetConfig::uniform(config(replica, load, settings), n_lanes);
    fleet.gateway.policy = settings.policy;
    if settings.is_direct {
        (fleet.gateway.tokenizing, fleet.gateway.delivery) = (Stage::FREE, Stage::FREE);
        fleet.replicas.iter_mut().for_each(|replica| replica.network = Nanos(0));
    }
    fleet
}

fn run(
    replica: &Replica,
    n_replicas: u64,
    load: &Load,
    settings: &Settings,
    seed: u64,
) -> Result<(Report, [Percentiles; 3]), SimError> {
    let warm_up = warm_up(settings.seconds);
    let duration = nanos(settings.seconds);
    let lanes = n_replicas as usize * replica.n_lanes as usize;
    let mut fleet = fleet(replica, lanes, load, settings);
    fleet.sample_interval = Some(nanos(settings.seconds / TIMELINE_POINTS));
    let workload = workload(load, replica.model.max_sequence_tokens, duration, seed)?;
    let half = Timestamp::from_ns(duration.0 / 2);
    let kill = |replica| Fault::Kill { replica, at: half, restart_after: None };
    let faults = (0..settings.n_lost as usize * replica.n_lanes as usize).map(kill).collect();
    let mut report = ReportBuilder::new(Objective::default(), warm_up);
    let totals = Simulation::new(fleet, Box::new(workload), seed)?.with_faults(faults)?.run(&mut report)?;
    let of = |histogram: &LatencyHistogram| {
        let ms = |percent: f64| histogram.percentile(percent).map_or(0.0, |time| time.as_secs_f64() * 1e3);
        PERCENTILES.iter().map(|&percent| ms(percent)).collect()
    };
    let latencies = report.latencies();
    let distributions = [&latencies.first_token, &latencies.gap, &latencies.end_to_end].map(of);
    Ok((report.finish(totals), distributions))
}

/// The requests of a day at random times: `load` is that of the busiest time, whose rate is `peak_factor`
/// times the mean. The day lasts `seconds`.
///
/// # Errors
/// When a number is invalid.
pub fn day(
    load: &Load,
    peak_factor: f64,
    max_sequence_tokens: u32,
    seconds: f64,
    seed: u64,
) -> Result<OpenLoop, SimError> {
    let mean_rate = load.requests_per_s / peak_factor;
    let process = ArrivalProcess::Daily { mean_rate, peak_factor, day_s: seconds };
    OpenLoop::new(process, shape(load, u64::from(max_sequence_tokens)), nanos(seconds), seed)
}

/// Requests of a load at random times, until `duration` is over. The same seed gives the same requests.
///
/// # Errors
/// When a number of the load is invalid.
pub fn workload(
    load: &Load,
    max_sequence_tokens: u32,
    duration: Nanos,
    seed: u64,
) -> Result<OpenLoop, SimError> {
    let process = ArrivalProcess::Poisson { rate: load.requests_per_s };
    OpenLoop::new(process, shape(load, u64::from(max_sequence_tokens)), duration, seed)
}

/// Duration of the beginning of a run whose requests do not count, in nanoseconds.
pub fn warm_up(seconds: f64) -> Nanos {
    nanos(seconds * WARM_UP_SHARE)
}

/// Configuration of one simulated lane of a replica.
fn config(replica: &Replica, load: &Load, settings: &Settings) -> ReplicaConfig {
    let lanes = f64::from(replica.n_lanes);
    let sequence_tokens = (load.prompt.mean + load.output.mean).ceil() as u64;
    let n_tokens = replica.memory.n_tokens(&replica.model, sequence_tokens) / lanes;
    let resident = replica.max_running(load) / lanes;
    let max_batch_sequences = (resident.max(1.0) as u32).min(replica.batching.max_sequences);
    let capacity = ExecutorCapacity {
        n_blocks: (n_tokens / BLOCK_TOKENS as f64).min(f64::from(u32::MAX)) as u32,
        max_batch_tokens: replica.batching.max_batch_tokens,
        max_batch_sequences,
        max_sequence_tokens: replica.model.max_sequence_tokens,
        vocabulary_size: VOCABULARY,
        n_state_slots: 0,
        max_steps_in_flight: 1,
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    };
    let defaults = SchedulerConfig::default();
    let scheduler = SchedulerConfig {
        max_batch_tokens: replica.batching.max_batch_tokens,
        max_batch_sequences,
        inter_token_target_ms: settings.inter_token_target_ms.unwrap_or(defaults.inter_token_target_ms),
        max_queued_requests: u32::MAX,
        max_queued_tokens: u64::MAX,
        speculation: SpeculationMethod::None,
        ..defaults
    };
    let speculation = replica
        .batching
        .speculation
        .map(|drafts| SpeculationConfig { n_drafts: drafts.n_drafts, acceptance: drafts.acceptance });
    ReplicaConfig {
        engine: EngineConfig { scheduler, ..EngineConfig::default() },
        speculation,
        ..ReplicaConfig::new(capacity, Arc::<dyn StepCost>::clone(&replica.cost))
    }
}

/// Lengths of requests. The cached share of prompts is a prefix that all share.
fn shape(load: &Load, max_tokens: u64) -> RequestShape {
    let cached = load.prompt.mean * (load.cached_share + load.host_cached_share);
    let own = Length { mean: (load.prompt.mean - cached).max(1.0), ..load.prompt };
    let distribution = |length: Length| match length.sigma() {
        sigma if sigma > 0.0 => Distribution::LogNormal { median: length.median(), sigma },
        _ => Distribution::Constant(length.mean),
    };
    let shared_prefix = (cached as u64).min(max_tokens / 2) as u32;
    RequestShape { shared_prefix, ..RequestShape::new(distribution(own), distribution(load.output)) }
}

/// Samples of all replicas at one time, taken together.
fn timeline(samples: &[ReplicaSample], n_replicas: u64) -> Vec<TimelinePoint> {
    let mut points: Vec<TimelinePoint> = Vec::new();
    let mut last_ns = 0;
    for at in samples.chunk_by(|a, b| a.at_ns == b.at_ns) {
        let at_ns = at[0].at_ns;
        let sum = |of: fn(&ReplicaSample) -> f64| at.iter().map(of).sum::<f64>();
        let blocks = sum(|sample| f64::from(sample.total_blocks)).max(1.0);
        let elapsed = (at_ns - last_ns).max(1) as f64 * n_replicas as f64;
        points.push(TimelinePoint {
            at_s: at_ns as f64 * 1e-9,
            n_waiting: sum(|sample| f64::from(sample.n_waiting)),
            n_running: sum(|sample| f64::from(sample.n_running)),
            cache_share: sum(|sample| f64::from(sample.used_blocks)) / blocks,
            busy_share: (sum(|sample| sample.busy.0 as f64) / elapsed).min(1.0),
        });
        last_ns = at_ns;
    }
    points
}
