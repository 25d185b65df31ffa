//! Settings of routing: models, replicas, regions and aliases. Does not choose.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use throng_core::fleet::routing::{
    EVERYONE, MAX_REGIONS, Policy, Region, Residency, UnknownPolicy, is_region_name,
};
use throng_fleet::dispatch::RoutingSettings;

/// Settings of routing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Choice among a model's replicas.
    pub policy: RoutingPolicy,
    /// Region of this gateway: replicas in it are the nearest.
    pub region: Option<String>,
    /// Names of all regions. Without them, every name is accepted, and residency rules are refused.
    pub regions: Vec<String>,
    /// Residency rules, which bind the requests of organisations to regions.
    pub residency: Vec<ResidencyRule>,
    /// Model aliases.
    pub aliases: Vec<ModelAlias>,
    /// Seconds that a started request waits for a worker to come back when the last one is lost; 10 by
    /// default. A new request waits until 5 s after the loss, and no longer than this.
    pub replica_wait_s: Option<u64>,
}

/// Regions that the requests of one organisation are bound to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ResidencyRule {
    /// Organisation of stored keys or tokens; `*` for all without a rule, and for clients without an
    /// organisation.
    pub organisation: String,
    /// Names of the regions.
    pub regions: Vec<String>,
}

/// A name that is resolved to one of several models.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAlias {
    /// Name in requests.
    pub name: String,
    /// Models among which requests are divided.
    pub targets: Vec<WeightedModel>,
    /// Models that are tried in order if the target of a request is unavailable or has failed before its
    /// first token.
    #[serde(default)]
    pub fallback: Vec<String>,
    /// Model that gets copies of requests.
    #[serde(default)]
    pub shadow: Option<ShadowConfig>,
}

/// Copies of some requests, whose answers are discarded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowConfig {
    /// Model that gets the copies.
    pub model: String,
    /// Percentage of requests that are copied.
    pub percent: u32,
    /// Maximum number of running copies.
    #[serde(default = "eight")]
    pub max_in_flight: usize,
}

/// A model with its share of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WeightedModel {
    /// Name of the model.
    pub model: String,
    /// Weight of the model, as a part of the sum of all weights.
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

fn eight() -> usize {
    8
}

/// Default and maximum time in seconds for which a request waits for a replica to come back.
const DEFAULT_REPLICA_WAIT_S: u64 = 10;
const MAX_REPLICA_WAIT_S: u64 = 600;
/// Maximum number of aliases, and of models of each.
const MAX_ALIASES: usize = 256;
const MAX_MODELS: usize = 16;
/// Maximum number of residency rules.
const MAX_RULES: usize = 1024;
/// Description of names of regions.
const REGION_NAME: &str = "a name of 1 to 64 letters, digits, '-', '_' and '.'";
/// Maximum number of running copies of an alias's requests.
const MAX_COPIES: usize = 1024;

impl RoutingConfig {
    /// Checks the regions, the residency rules and the aliases.
    ///
    /// # Errors
    /// A description of the unusable setting.
    pub fn check(&self) -> Result<(), String> {
        self.check_regions()?;
        self.check_residency()?;
        if self.replica_wait_s.is_some_and(|seconds| seconds > MAX_REPLICA_WAIT_S) {
            return Err(format!("gateway.routing.replica_wait_s: more than {MAX_REPLICA_WAIT_S}"));
        }
        if self.aliases.len() > MAX_ALIASES {
            return Err(format!("gateway.routing.aliases: more than {MAX_ALIASES}"));
        }
        for (idx, alias) in self.aliases.iter().enumerate() {
            let ModelAlias { name, targets, fallback, shadow } = alias;
            let fault = |what: &str| Err(format!("gateway.routing.aliases: {name:?}: {what}"));
            if name.is_empty() || self.aliases[..idx].iter().any(|other| other.name == *name) {
                return fault("the name is empty or stands there twice");
            }
            if targets.iter().all(|target| target.weight == 0) {
                return fault("no target has a weight");
            }
            if targets.len() > MAX_MODELS || fallback.len() > MAX_MODELS {
                return fault("more than 16 models");
            }
            if shadow.as_ref().is_some_and(|shadow| {
                shadow.percent > 100 || !(1..=MAX_COPIES).contains(&shadow.max_in_flight)
            }) {
                return fault("a shadow gets 0 to 100 percent, and 1 to 1024 copies at a time");
            }
            let shadow = shadow.iter().map(|shadow| &shadow.model);
            let mut models = targets.iter().map(|target| &target.model).chain(fallback).chain(shadow);
            if models.any(|model| self.aliases.iter().any(|other| other.name == *model)) {
                return fault("an alias cannot stand for another one");
            }
        }
        Ok(())
    }

    /// The settings for dispatchers.
    pub(crate) fn settings(&self) -> RoutingSettings {
        RoutingSettings {
            policy: self.policy.0,
            region: self.region.as_deref().map(Region::from),
            residency: self.residency(),
            patience: Duration::from_secs(self.replica_wait_s.unwrap_or(DEFAULT_REPLICA_WAIT_S)),
        }
    }

    fn check_regions(&self) -> Result<(), String> {
        let wrong = |fault: String| Err(format!("gateway.routing.regions: {fault}"));
        if self.regions.len() > MAX_REGIONS {
            return wrong(format!("more than {MAX_REGIONS}"));
        }
        for (idx, name) in self.regions.iter().enumerate() {
            if !is_region_name(name) || self.regions[..idx].contains(name) {
                return wrong(format!("{name:?} stands there twice or is not {REGION_NAME}"));
            }
        }
        let checked = self.region.as_deref().map_or(Ok(()), |region| self.check_region(region));
        checked.map_err(|fault| format!("gateway.routing.region: {fault}"))
    }

    /// Checks that there is a region with this name.
    ///
    /// # Errors
    /// The reason why it does not exist.
    pub(crate) fn check_region(&self, name: &str) -> Result<(), String> {
        if !is_region_name(name) {
            return Err(format!("{name:?} is not {REGION_NAME}"));
        }
        let is_known = self.regions.is_empty() || self.regions.iter().any(|known| known == name);
        if is_known {
            return Ok(());
        }
        Err(format!("{name:?} is none of gateway.routing.regions ({})", self.regions.join(", ")))
    }

    fn check_residency(&self) -> Result<(), String> {
        if self.residency.len() > MAX_RULES {
            return Err(format!("gateway.routing.residency: more than {MAX_RULES}"));
        }
        if !self.residency.is_empty() && self.regions.is_empty() {
            return Err("gateway.routing.residency: gateway.routing.regions must name all regions".into());
        }
        for (idx, ResidencyRule { organisation, regions }) in self.residency.iter().enumerate() {
            let wrong = |fault: &str| Err(format!("gateway.routing.residency: {organisation:?}: {fault}"));
            if organisation.is_empty() {
                return wrong("an organisation needs a name");
            }
            if self.residency[..idx].iter().any(|other| other.organisation == *organisation) {
                return wrong("there are two rules for it");
            }
            if regions.is_empty() {
                return wrong("it permits no region: keys are blocked by their settings, not by a rule");
            }
            for (idx, region) in regions.iter().enumerate() {
                if regions[..idx].contains(region) {
                    return wrong(&format!("{region:?} stands there twice"));
                }
                self.check_region(region).or_else(|fault| wrong(&fault))?;
            }
        }
        Ok(())
    }

    /// Whether a rule binds the requests of this organisation to regions.
    pub(crate) fn binds(&self, organisation: Option<&str>) -> bool {
        self.residency
            .iter()
            .any(|rule| rule.organisation == EVERYONE || Some(&*rule.organisation) == organisation)
    }

    fn residency(&self) -> Residency {
        Residency::new(self.residency.iter().map(|rule| {
            let regions = rule.regions.iter().map(|region| Region::from(region.as_str())).collect();
            (rule.organisation.clone(), regions)
        }))
    }
}

/// Name of a policy: `least-ttft`, `least-tokens`, `power-of-two` or `round-robin`.
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
