//! The tests of `throng-core` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod blocks_elsewhere;
mod fleet;
mod fuzz;
mod image_names;
mod large_pictures;
mod light_tenants;
mod replica_health;
mod resumed;
mod rollout;
mod routing_trace;
mod scenarios;
