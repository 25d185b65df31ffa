//! Which replica gets a request. Does not choose.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use throng_core::routing::{Policy, UnknownPolicy};

/// How requests are distributed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// How one of a model's replicas is chosen.
    pub policy: RoutingPolicy,
}

/// A policy by its name: `least-ttft`, `least-tokens`, `power-of-two` or `round-robin`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct RoutingPolicy(pub Policy);

impl FromStr for RoutingPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        name.parse().map(Self)
    }
}

impl TryFrom<String> for RoutingPolicy {
    type Error = UnknownPolicy;

    fn try_from(name: String) -> Result<Self, UnknownPolicy> {
        name.parse()
    }
}

impl From<RoutingPolicy> for String {
    fn from(policy: RoutingPolicy) -> Self {
        policy.0.name().to_owned()
    }
}
