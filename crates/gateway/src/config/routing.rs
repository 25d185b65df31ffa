//! Which model and which replica get a request. Does not choose.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use throng_core::routing::{Policy, UnknownPolicy};

/// How requests are distributed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// How one of a model's replicas is chosen.
    pub policy: RoutingPolicy,
    /// Names that stand for models.
    pub aliases: Vec<ModelAlias>,
}

/// A name that stands for one of some models.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAlias {
    /// The name that requests use.
    pub name: String,
    /// The models that requests are divided among.
    pub targets: Vec<WeightedModel>,
    /// Models that are used one after the other where the target of a request cannot be, or has failed before its first token.
    #[serde(default)]
    pub fallback: Vec<String>,
    /// Where copies of requests go.
    #[serde(default)]
    pub shadow: Option<ShadowConfig>,
}

/// Copies of some requests, whose answers nobody gets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowConfig {
    /// The model that gets them.
    pub model: String,
    /// Requests that are copied, of a hundred.
    pub percent: u32,
    /// Copies that run at a time; no more are made then.
    #[serde(default = "eight")]
    pub max_in_flight: usize,
}

/// A part of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WeightedModel {
    /// The model that gets it.
    pub model: String,
    /// Its size, in parts of the sum of all weights.
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

fn eight() -> usize {
    8
}

/// Most aliases, and most models of each.
const MAX_ALIASES: usize = 256;
const MAX_MODELS: usize = 16;
/// Most copies of an alias's requests at a time.
const MAX_COPIES: usize = 1024;

impl RoutingConfig {
    /// Checks the aliases.
    ///
    /// # Errors
    /// What cannot be used.
    pub fn check(&self) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(name: &str, model: &str, weight: u32) -> ModelAlias {
        let targets = vec![WeightedModel { model: model.to_owned(), weight }];
        ModelAlias { name: name.to_owned(), targets, fallback: Vec::new(), shadow: None }
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let shadow = |percent, max_in_flight| {
            let shadow = Some(ShadowConfig { model: "n".to_owned(), percent, max_in_flight });
            vec![ModelAlias { shadow, ..alias("a", "m", 1) }]
        };
        let told = |aliases| RoutingConfig { aliases, ..RoutingConfig::default() }.check().err();
        assert_eq!(told(vec![alias("a", "m", 1), alias("b", "m", 1)]), None);
        assert_eq!(told(shadow(100, 8)), None);
        for (aliases, words) in [
            (vec![alias("", "m", 1)], "empty"),
            (vec![alias("a", "m", 1), alias("a", "n", 1)], "twice"),
            (vec![alias("a", "m", 0)], "weight"),
            (vec![alias("a", "b", 1), alias("b", "m", 1)], "another"),
            (shadow(101, 8), "percent"),
            (shadow(5, 0), "copies"),
            (vec![ModelAlias { fallback: vec!["m".to_owned(); 17], ..alias("a", "m", 1) }], "16"),
        ] {
            assert!(told(aliases).is_some_and(|fault| fault.contains(words)), "{words}");
        }
    }
}
