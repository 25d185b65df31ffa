//! The arguments of commands that measure, simulate and plan. Does not know how.

mod autoscale;
mod bench;
mod load;
mod plan;

pub use autoscale::{AutoscalePolicyArgs, PlanAutoscaleArgs, PlanCommand, PlanCommandArgs};
pub use bench::{BenchArgs, BenchConstraint, BenchInstead, BenchMachineArgs};
pub use load::{
    BenchServerArgs, LoadKind, LoadTargetArgs, ReplayArgs, TraceArgs, TraceCommand, TraceProfileArgs,
};
pub use plan::{CalibrateArgs, PlanArgs, PlanFleetArgs, PlanGoal, PlanLoadArgs, PlanPrefill};
