//! Capacity planning: machines, models and cost models, and the search for the fleet that a load needs.
//! Plain numbers, without files and clocks.
#![forbid(unsafe_code)]

pub mod autoscale;
pub mod cost;
pub mod error;
pub mod fleet;
pub mod load;
pub mod machine;
pub mod memory;
mod minimize;
pub mod model_shape;
pub mod parallelism;
pub mod queueing;
pub mod replica;
pub mod search;
pub mod simulate;

pub use error::PlanError;
pub use load::Load;
pub use machine::{Catalogue, Efficiency, Machine};
pub use model_shape::ModelShape;
pub use parallelism::Parallelism;
pub use replica::Replica;
