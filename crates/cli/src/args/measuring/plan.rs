//! The arguments of `throng plan` and `throng calibrate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use throng_core::fleet::routing::Policy;

use crate::args::ModelArgs;
use crate::args::values::{model_place, parse_bytes};
use crate::bounds::{self, within};

/// A plan.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// A folder, a config.json, a .gguf file, or a hub id in the cache; the built-in starter model when
    /// absent
    #[arg(value_parser = model_place, conflicts_with = "shape")]
    pub model: Option<String>,
    /// The sizes of a model typed in: layers=80,hidden=8192,heads=64,kv-heads=8,head-dim=128,ffn=28672,
    /// vocabulary=128256, for experts also experts=128,experts-used=8, and context=131072 or tied where they
    /// apply
    #[arg(long, value_name = "SIZES")]
    pub shape: Option<String>,
    /// Type of the weights, instead of the model's own: f32, bf16, fp8, int8, q8_0, q4_0, int4 or nvfp4
    #[arg(long, value_name = "TYPE")]
    pub weights: Option<String>,
    /// Type of keys and values: f32, bf16, f16, fp8 or q8_0
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub kv_cache_dtype: String,
    /// The load.
    #[command(flatten)]
    pub load: PlanLoadArgs,
    /// The fleet.
    #[command(flatten)]
    pub fleet: PlanFleetArgs,
    /// The times that 99 of 100 requests wait for the first token at most, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Targets")]
    pub first_token_ms: Option<f64>,
    /// The time between two tokens that 99 of 100 gaps do not exceed, in milliseconds
    #[arg(long, value_name = "MS", help_heading = "Targets")]
    pub gap_ms: Option<f64>,
    /// The order of the fleets
    #[arg(long, value_enum, default_value = "smallest", help_heading = "Targets")]
    pub goal: PlanGoal,
    /// Most fleets that are shown
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Simulate this many seconds of the best fleet with the product's own scheduler and router
    #[arg(long, value_name = "SECONDS")]
    pub simulate: Option<f64>,
    /// The router's policy in the simulation: least-ttft, least-tokens, power-of-two or round-robin
    #[arg(long, value_name = "POLICY")]
    pub routing: Option<Policy>,
    /// Replicas that the simulation loses in the middle
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub lose: u64,
    /// Print the best fleet for each value of one argument: rate=10,20,40 or kv-cache-dtype=bf16,fp8
    #[arg(long, value_name = "NAME=VALUES", conflicts_with = "html")]
    pub vary: Option<String>,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write a page with plots into this file; it needs nothing else and no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// List the machines with their figures and sources, and plan nothing
    #[arg(long)]
    pub list_machines: bool,
}

/// The load of `throng plan`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
pub struct PlanLoadArgs {
    /// Requests a second, at the busiest time
    #[arg(long, value_name = "R", conflicts_with_all = ["users", "people"])]
    pub rate: Option<f64>,
    /// A file of --record, a trace or an access log: lengths, and the rate of its busiest five minutes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "users", "people", "prompt_tokens", "output_tokens", "variation"])]
    pub day: Option<PathBuf>,
    /// Users of a crowd, who ask --requests-per-day times a day
    #[arg(long, value_name = "N", conflicts_with = "people")]
    pub users: Option<f64>,
    /// Requests of a user a day
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub requests_per_day: f64,
    /// Requests at the busiest time in parts of the mean
    #[arg(long, value_name = "F", default_value_t = 3.0)]
    pub peak_factor: f64,
    /// People at their screens, who wait for an answer, pause for --pause seconds and ask again
    #[arg(long, value_name = "N")]
    pub people: Option<f64>,
    /// Seconds that people pause between an answer and the next request
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub pause: f64,
    /// Mean number of prompt tokens
    #[arg(long, value_name = "N", default_value_t = 500.0)]
    pub prompt_tokens: f64,
    /// Mean number of tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 300.0)]
    pub output_tokens: f64,
    /// Tokens of the longest prompt of --day.
    #[arg(skip)]
    pub most_prompt_tokens: Option<f64>,
    /// Tokens of the longest answer of --day.
    #[arg(skip)]
    pub most_output_tokens: Option<f64>,
    /// Standard deviation of both numbers in parts of the mean; 0: always the same
    #[arg(long, value_name = "V", default_value_t = 0.5)]
    pub variation: f64,
    /// Share of prompt tokens that the prefix cache holds
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub cached_share: f64,
    /// Further share of prompt tokens whose keys and values are in the memory of the host
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub host_cached_share: f64,
}

/// The machines of `throng plan` and how a model is spread over them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Fleet")]
pub struct PlanFleetArgs {
    /// Machines to compare; all of them when absent
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub machine: Vec<String>,
    /// A TOML file with machines of your own, in the form of crates/plan/data/machines.toml
    #[arg(long, value_name = "FILE")]
    pub machines: Option<PathBuf>,
    /// Price of a device and hour: h100=2.50,l4=0.70, in a currency of your choice
    #[arg(long, value_name = "PRICES", value_delimiter = ',')]
    pub price: Vec<String>,
    /// Memory of machines that have none of their own, such as processors
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub machine_memory: Option<u64>,
    /// Share of a device's memory that weights, keys and values may use
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub memory_share: f64,
    /// Devices that share each matrix
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8")]
    pub tensor_parallel: Vec<u32>,
    /// Stages of layers
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub pipeline_parallel: Vec<u32>,
    /// Groups of devices that share the experts
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub expert_parallel: Vec<u32>,
    /// Where prompts are computed: by the replicas that answer, apart from them, or both compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "together")]
    pub prefill: Vec<PlanPrefill>,
    /// Most sequences of a step; by default 256, or as many as --calibration has measured
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub max_num_seqs: Vec<u32>,
    /// Most tokens of a step; by default 2048, or as many as --calibration has measured
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub max_num_batched_tokens: Vec<u32>,
    /// Drafts of a sequence in a step, with --speculative-acceptance
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub speculative_tokens: u32,
    /// Probability that a draft is right; none are made when absent
    #[arg(long, value_name = "P")]
    pub speculative_acceptance: Option<f64>,
    /// Microseconds of a step in which no device computes
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    pub step_overhead_us: f64,
    /// A file of `throng calibrate`: durations of steps as they were measured
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// A table of measured operators of the one machine that is named, in the form of Vidur's *_mlp.csv
    #[arg(long, value_name = "FILE", requires = "machine", conflicts_with = "calibration")]
    pub operators: Option<PathBuf>,
    /// Number of replicas, of which the highest load is shown; the smallest number for the load when absent
    #[arg(long, value_name = "N")]
    pub replicas: Option<u64>,
    /// Replicas that may be lost while the load is still met
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub spare: u64,
}

/// `throng calibrate`.
#[derive(Debug, Clone, Args)]
pub struct CalibrateArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The file that `throng plan --calibration` reads
    #[arg(long, short = 'o', value_name = "FILE", default_value = "calibration.json")]
    pub output: PathBuf,
    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = within(bounds::CALIBRATION_S))]
    pub seconds: u64,
    /// Afterwards run 30, 70 and 110 % of the highest load for this many seconds each, and print predicted
    /// beside measured times
    #[arg(long, value_name = "SECONDS", value_parser = within(bounds::CALIBRATION_S))]
    pub check: Option<u64>,
    /// Most requests at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = within(bounds::STEP_ROWS))]
    pub most_users: u32,
    /// Most tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = within(bounds::BENCH_TOKENS))]
    pub most_prompt_tokens: u32,
}

/// The order of fleets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanGoal {
    /// Fewest devices
    Smallest,
    /// Lowest price, which needs --price
    Cheapest,
    /// Fewest watts
    Power,
}

/// Where prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanPrefill {
    /// By the replicas that answer
    Together,
    /// By replicas of their own
    Apart,
}
