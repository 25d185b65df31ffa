//! What a simulated fleet is made of: its settings, its faults, and one replica.

mod config;
mod faults;
pub(crate) mod replica;

pub use config::{ClientConfig, FleetConfig, GatewaySettings, ReplicaConfig, SpeculationConfig, Stage};
pub use faults::Fault;
