//! The operator's settings for routing. Does not know where they are configured.

use std::time::Duration;

use throng_core::fleet::routing::{Policy, Region, Residency};

/// Settings of the routing between a gateway and the replicas of its models.
#[derive(Debug, Clone, Default)]
pub struct RoutingSettings {
    /// Policy for the choice of a replica.
    pub policy: Policy,
    /// Region of this gateway, if configured.
    pub region: Option<Region>,
    /// Regions that each organisation's requests are restricted to.
    pub residency: Residency,
    /// Time that a started request waits for a new replica after the last one is lost.
    pub patience: Duration,
}
