//! The form of plans in `throng plan --json` and on the page: plain numbers in named units.

use serde::Serialize;
use throng_plan::fleet::{FleetPlan, Layout};
use throng_plan::replica::Times;
use throng_plan::search::Question;
use throng_plan::{Load, ModelShape};

/// A whole answer.
#[derive(Debug, Clone, Serialize)]
pub struct PlanView {
    /// The model to be served.
    pub model: ModelView,
    /// Load of the users.
    pub load: LoadView,
    /// Targets of the plan.
    pub targets: TargetsView,
    /// Fleets, the best first.
    pub fleets: Vec<FleetView>,
    /// Ways to serve the model that cannot meet the load, with the reason.
    pub refused: Vec<RefusalView>,
    /// A simulation of the best fleet.
    pub simulation: Option<SimulationView>,
    /// A day with an autoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<AutoscaleView>,
    /// Checks made beyond the numbers, and remarks for readers.
    pub notes: Vec<String>,
}

/// A model in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    /// Name of the model.
    pub name: String,
    /// Number of all parameters.
    pub parameters: f64,
    /// Parameters that take part in the computation of one token.
    pub active_parameters: f64,
    /// Bytes of all weights.
    pub weight_bytes: f64,
    /// Bytes of the keys and values of one token.
    pub kv_bytes_per_token: f64,
    /// Bytes of the recurrent states of a sequence.
    pub state_bytes: f64,
}

/// A load in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct LoadView {
    /// Requests a second.
    pub requests_per_s: f64,
    /// Mean number of prompt tokens.
    pub prompt_tokens: f64,
    /// Mean number of tokens of an answer.
    pub output_tokens: f64,
    /// Standard deviation of both lengths, relative to the mean.
    pub variation: f64,
    /// Share of prompt tokens that the prefix cache holds.
    pub cached_share: f64,
    /// Further share that the host's memory holds.
    pub host_cached_share: f64,
}

/// Targets in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct TargetsView {
    /// First token, at the 99th percentile.
    pub first_token_p99_ms: Option<f64>,
    /// 99th percentile of the gaps.
    pub gap_p99_ms: Option<f64>,
}

/// A time in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TimesView {
    /// Mean of the times.
    pub mean_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// A fleet in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct FleetView {
    /// Name of the fleet: replicas, machine, parallelism, and bounds of batches if fleets differ in them.
    pub name: String,
    /// Name of the fleet's machine.
    pub machine: String,
    /// Number of devices that share each matrix.
    pub tensor_parallel: u32,
    /// Number of stages of layers.
    pub pipeline_parallel: u32,
    /// Number of groups that share the experts.
    pub expert_parallel: u32,
    /// Whether prompts are computed by replicas of their own.
    pub prefill_apart: bool,
    /// Maximum number of sequences of a step.
    pub max_num_seqs: u32,
    /// Maximum number of tokens of a step.
    pub max_num_batched_tokens: u32,
    /// Number of replicas that answer.
    pub replicas: u64,
    /// Number of replicas that compute prompts.
    pub prefill_replicas: u64,
    /// Number of replicas of each kind that may be lost.
    pub spare_replicas: u64,
    /// Number of all devices.
    pub devices: u64,
    /// Load, relative to the highest one within the targets.
    pub utilization: f64,
    /// Requests a second that are answered within the targets.
    pub highest_requests_per_s: f64,
    /// Output tokens a second at the load.
    pub output_tokens_per_s: f64,
    /// Time to the first token.
    pub first_token: TimesView,
    /// Time between two tokens.
    pub gap: TimesView,
    /// Mean time to the end of an answer.
    pub answer_ms: f64,
    /// Mean duration of a step in milliseconds.
    pub step_ms: f64,
    /// Number of sequences that decode on a replica.
    pub running: f64,
    /// Largest number of running sequences.
    pub max_running: f64,
    /// Share of the memory for keys and values in use.
    pub kv_cache_used: f64,
    /// Bytes of weights on a device.
    pub weight_bytes: f64,
    /// Bytes for keys and values on a device.
    pub kv_cache_bytes: f64,
    /// Price of the fleet for an hour.
    pub price_per_hour: Option<f64>,
    /// Price of a million output tokens.
    pub price_per_million_tokens: Option<f64>,
    /// Power of all devices in watts.
    pub watts: Option<f64>,
    /// Joules of an output token.
    pub joules_per_token: Option<f64>,
    /// Error of step durations that nine of ten predictions stay below, as a share of the duration.
    pub step_error_p90: Option<f64>,
    /// The curve of load and times of one replica.
    pub curve: Vec<PointView>,
}

/// A point of the curve of load and times.
#[derive(Debug, Clone, Serialize)]
pub struct PointView {
    /// Requests a second of all replicas.
    pub requests_per_s: f64,
    /// Output tokens a second of all replicas.
    pub output_tokens_per_s: f64,
    /// Time to the first token.
    pub first_token: TimesView,
    /// Time between two tokens.
    pub gap: TimesView,
    /// Price of a million output tokens at this load.
    pub price_per_million_tokens: Option<f64>,
    /// Joules of an output token at this load.
    pub joules_per_token: Option<f64>,
    /// Share of the memory for keys and values in use.
    pub kv_cache_used: f64,
    /// Sequences that decode on a replica.
    pub running: f64,
}

/// A way to serve the model that cannot meet the load.
#[derive(Debug, Clone, Serialize)]
pub struct RefusalView {
    /// Machine and parallelism.
    pub setup: String,
    /// Reason for the refusal.
    pub reason: String,
}

/// A simulation in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct SimulationView {
    /// Description of the simulation, as a sentence.
    pub about: String,
    /// Number of replicas that were simulated.
    pub replicas: u64,
    /// Number of replicas that the simulated ones represent.
    pub of_replicas: u64,
    /// Runs with different seeds.
    pub runs: u32,
    /// Number of requests of the first run.
    pub requests: u64,
    /// First-token times: mean of the first run, 99th percentile as the mean of all runs.
    pub first_token: TimesView,
    /// Largest distance of a run's 99th percentile from that mean, as a share of it.
    pub first_token_p99_spread: f64,
    /// Times of the gaps between tokens.
    pub gap: TimesView,
    /// Spread of the gaps' 99th percentile over the runs.
    pub gap_p99_spread: f64,
    /// Output tokens a second of all replicas that it represents.
    pub output_tokens_per_s: f64,
    /// Number of events of the first run.
    pub events: u64,
    /// Percentiles of the lists of times.
    pub percentiles: Vec<f64>,
    /// First-token times at these percentiles, in milliseconds.
    pub first_token_ms: Vec<f64>,
    /// Gaps between tokens in milliseconds.
    pub gaps_ms: Vec<f64>,
    /// Times to the end of answers.
    pub answers_ms: Vec<f64>,
    /// Numbers of requests and sequences over time.
    pub timeline: Vec<TimelineView>,
}

/// A state of the simulated replicas.
#[derive(Debug, Clone, Serialize)]
pub struct TimelineView {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Number of waiting requests.
    pub waiting: f64,
    /// Number of running sequences.
    pub running: f64,
    /// Share of the memory for keys and values in use.
    pub kv_cache_used: f64,
    /// Share of the time in steps.
    pub busy: f64,
}

/// A day with an autoscaler beside one without, in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct AutoscaleView {
    /// Simulated share of the fleet.
    pub part: f64,
    /// Number of requests of the simulated part.
    pub requests: u64,
    /// The fleet that the autoscaler sizes, then the one of fixed size.
    pub fleets: Vec<DayRunView>,
    /// Number of changes of the desired number of replicas.
    pub changes: usize,
    /// Number of changes from growing to shrinking or back.
    pub turns: usize,
    /// Largest number of turns within an hour.
    pub most_turns_an_hour: usize,
    /// Times that the fleet grew from no replica.
    pub starts_from_zero: usize,
    /// Times that requests of the simulated part found no replica, retries included.
    pub unserved: u64,
    /// Numbers of replicas over time.
    pub timeline: Vec<ScalePointView>,
}

/// A day on one fleet.
#[derive(Debug, Clone, Serialize)]
pub struct DayRunView {
    /// Name of the run.
    pub name: String,
    /// Mean number of replicas that run.
    pub mean_replicas: f64,
    /// Largest number of replicas.
    pub most_replicas: f64,
    /// Hours of all replicas together.
    pub replica_hours: f64,
    /// Price of the replica hours.
    pub price: Option<f64>,
    /// Time to the first token that half of the requests exceed.
    pub first_token_p50_ms: f64,
    /// Time to the first token.
    pub first_token: TimesView,
    /// Time between two tokens.
    pub gap: TimesView,
    /// Share of requests without a complete answer.
    pub failed_share: f64,
}

/// The size of a fleet at a time.
#[derive(Debug, Clone, Serialize)]
pub struct ScalePointView {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Desired number of replicas.
    pub desired: f64,
    /// Number of replicas that take requests.
    pub serving: f64,
    /// Number of running sequences.
    pub running: f64,
    /// Number of waiting sequences.
    pub waiting: f64,
}

/// A time in milliseconds.
pub fn times(times: Times) -> TimesView {
    TimesView { mean_ms: times.mean * 1e3, p99_ms: times.p99 * 1e3 }
}

/// `3 × h100 TP 8`, with replicas for prompts and spare ones.
fn name(plan: &FleetPlan) -> String {
    let mut name = format!("{} × {} {}", plan.n_replicas, plan.machine, plan.parallelism.name());
    name.truncate(name.trim_end().len());
    if plan.layout == Layout::Apart {
        name += &format!(" + {} for prompts", plan.n_prefill);
    }
    if plan.n_spare > 0 {
        name += &format!(" + {} spare", plan.n_spare);
    }
    name
}

impl FleetView {
    /// A fleet that answers this load. `batches` ends its name.
    pub fn new(plan: &FleetPlan, batches: String, load: &Load, curve: Vec<PointView>) -> Self {
        let steady = &plan.steady;
        Self {
            name: name(plan) + &batches,
            machine: plan.machine.clone(),
            tensor_parallel: plan.parallelism.tensor,
            pipeline_parallel: plan.parallelism.pipeline,
            expert_parallel: plan.parallelism.expert,
            prefill_apart: plan.layout == Layout::Apart,
            max_num_seqs: plan.batching.max_sequences,
            max_num_batched_tokens: plan.batching.max_batch_tokens,
            replicas: plan.n_replicas,
            prefill_replicas: plan.n_prefill,
            spare_replicas: plan.n_spare,
            devices: plan.n_devices,
            utilization: plan.utilization,
            highest_requests_per_s: plan.highest_rate,
            output_tokens_per_s: load.requests_per_s * load.output.mean,
            first_token: times(steady.first_token),
            gap: times(steady.gap),
            answer_ms: steady.answer_s * 1e3,
            step_ms: steady.step_s * 1e3,
            running: steady.n_running,
            max_running: steady.max_running,
            kv_cache_used: steady.cache_share,
            weight_bytes: plan.weight_bytes,
            kv_cache_bytes: plan.cache_bytes,
            price_per_hour: plan.price_per_hour,
            price_per_million_tokens: plan.price_per_million,
            watts: plan.watts,
            joules_per_token: plan.joules_per_token,
            step_error_p90: plan.error.map(|error| error.p90),
            curve,
        }
    }
}

impl PlanView {
    /// The view of the answers to a question.
    pub fn new(
        model: &ModelShape,
        question: &Question,
        (fleets, refused): (Vec<FleetView>, Vec<RefusalView>),
        notes: Vec<String>,
    ) -> Self {
        let Question { load, targets, .. } = question;
        let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        Self {
            model: ModelView {
                name: model.name.clone(),
                parameters: model.n_parameters(),
                active_parameters: model.n_active_parameters(),
                weight_bytes: model.weight_bytes(),
                kv_bytes_per_token: model.kv_bytes_per_token(),
                state_bytes: model.state_bytes(),
            },
            load: LoadView {
                requests_per_s: load.requests_per_s,
                prompt_tokens: load.prompt.mean,
                output_tokens: load.output.mean,
                variation: load.prompt.variation,
                cached_share: load.cached_share,
                host_cached_share: load.host_cached_share,
            },
            targets: TargetsView {
                first_token_p99_ms: ms(targets.first_token_s),
                gap_p99_ms: ms(targets.gap_s),
            },
            fleets,
            refused,
            simulation: None,
            autoscale: None,
            notes,
        }
    }
}
