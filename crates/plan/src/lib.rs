//! Capacity planning: machines, models and cost models, and the search for the fleet that a load needs.
//! Plain numbers, without files and clocks.
#![forbid(unsafe_code)]

pub mod cost;
pub mod error;
pub mod machine;
mod minimize;
pub mod model_shape;
pub mod parallelism;

pub use error::PlanError;
pub use machine::{Catalogue, Efficiency, Machine};
pub use model_shape::ModelShape;
pub use parallelism::Parallelism;
