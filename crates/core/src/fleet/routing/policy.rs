//! Routing policies and their names. Does not know how they choose.

use std::str::FromStr;

/// Policy of the choice among eligible replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Replicas take turns.
    RoundRobin,
    /// The replica with the fewest tokens of requests that have not ended.
    LeastTokens,
    /// The one of two random replicas that has fewer tokens of requests that have not ended.
    PowerOfTwo,
    /// The replica with the least predicted time to first token, from queue, step times and cached prompt
    /// tokens.
    #[default]
    LeastTtft,
}

impl Policy {
    /// All routing policies.
    pub const ALL: [Self; 4] = [Self::RoundRobin, Self::LeastTokens, Self::PowerOfTwo, Self::LeastTtft];

    /// Name in flags and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::LeastTokens => "least-tokens",
            Self::PowerOfTwo => "power-of-two",
            Self::LeastTtft => "least-ttft",
        }
    }
}

/// A name of no known policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown routing policy {0:?}: expected round-robin, least-tokens, power-of-two or least-ttft")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
