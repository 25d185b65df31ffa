//! Parts of a simulated fleet: its settings, its faults, and one replica.

mod config;
mod faults;
pub(crate) mod replica;

pub use config::{ClientConfig, FleetConfig, GatewaySettings, ReplicaConfig, SpeculationConfig, Stage};
pub use faults::Fault;
