//! What an operator decides about routing, as dispatchers need it. Does not know where it is set.

use std::time::Duration;

use throng_core::fleet::routing::{Policy, Region, Residency};

/// Settings of the routing between a gateway and the replicas of its models.
#[derive(Debug, Clone, Default)]
pub struct RoutingSettings {
    /// Policy by which one of a model's replicas is chosen.
    pub policy: Policy,
    /// The region of this gateway, if it is set.
    pub region: Option<Region>,
    /// Regions that the requests of organisations are restricted to.
    pub residency: Residency,
    /// Time for which a started request waits for a replica when the last one is lost.
    pub patience: Duration,
}
