//! The tests of `throng-core` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod autoscaling;
mod blocks_elsewhere;
mod fleet;
mod fuzz;
mod image_names;
mod isolation;
mod large_pictures;
mod light_tenants;
mod marks;
mod overload;
mod replica_health;
mod residency;
mod resumed;
mod roles;
mod rollout;
mod router;
mod routing_trace;
mod scenarios;
mod units;
