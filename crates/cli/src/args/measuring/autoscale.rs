//! The arguments of `throng plan autoscale`, and the commands below `throng plan`.

use clap::{Args, Subcommand};

use super::plan::PlanArgs;

/// `throng plan` and the commands below it.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanCommandArgs {
    /// A command instead of a plan.
    #[command(subcommand)]
    pub command: Option<PlanCommand>,
    /// The plan.
    #[command(flatten)]
    pub plan: PlanArgs,
}

/// Commands of `throng plan`.
#[derive(Debug, Clone, Subcommand)]
pub enum PlanCommand {
    /// Run a day with the gateway's autoscaling policy, beside the planned fleet of fixed size
    Autoscale(Box<PlanAutoscaleArgs>),
}

/// `throng plan autoscale`.
#[derive(Debug, Clone, Args)]
pub struct PlanAutoscaleArgs {
    /// The plan of the fleet for the busiest time, of which --rate is the rate.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Hours of the day that --peak-factor describes, where --day names no requests
    #[arg(long, value_name = "H", default_value_t = 24.0, help_heading = "Day")]
    pub hours: f64,
    /// Part of the fleet and of its requests that is simulated; as much as eight replicas of the planned
    /// fleet when absent
    #[arg(long, value_name = "SHARE", help_heading = "Day")]
    pub part: Option<f64>,
    /// The policy.
    #[command(flatten)]
    pub policy: AutoscalePolicyArgs,
}

/// The policy, by the names that it has under `[gateway.autoscale]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Policy")]
pub struct AutoscalePolicyArgs {
    /// Minimum number of replicas; with 0, a model without requests may have none
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min_replicas: u32,
    /// Maximum number of replicas; twice the planned fleet when absent
    #[arg(long, value_name = "N")]
    pub max_replicas: Option<u32>,
    /// Running and waiting sequences that a replica should have
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub target_sequences: u32,
    /// Share of the KV cache that should be in use
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub target_kv_use: f64,
    /// Predicted wait of one more request for its first step that is accepted, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pub target_wait_ms: u64,
    /// Seconds from a change until the fleet may grow
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    pub up_cooldown_s: u64,
    /// Seconds from a change until the fleet may shrink, and the time whose largest wish counts
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub down_cooldown_s: u64,
    /// Seconds without a request after which there may be no replica
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub idle_s: u64,
    /// Seconds between two decisions
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    pub interval_s: f64,
    /// Seconds from the decision for a replica until it answers
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub start_up_s: f64,
}
