//! Model aliases at run time: the model of each request, chosen by weights and by a running roll-out, and
//! the number of running shadow copies. Does not know how models answer.

mod rollout;

use std::sync::{Arc, PoisonError, RwLock};

use throng_core::fleet::rollout::Plan;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{ModelAlias, ShadowConfig};
use throng_metering::metrics::AliasMetrics;

pub(crate) use rollout::{Golden, RunningRollout, Ticket};

/// The aliases of a gateway.
#[derive(Debug)]
pub(crate) struct Aliases(Vec<Arc<Alias>>);

/// An alias, with its roll-out.
#[derive(Debug)]
pub(crate) struct Alias {
    /// Settings of the alias.
    pub config: ModelAlias,
    /// Counters of the alias.
    pub metrics: AliasMetrics,
    /// The latest roll-out.
    rollout: RwLock<Option<Arc<RunningRollout>>>,
    /// Permits for shadow copies.
    copies: Arc<Semaphore>,
}

/// Destination of a request for an alias.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The chosen model, then the fallback models in order.
    pub models: Vec<String>,
    /// Ticket that reports the outcome of the request to the roll-out.
    pub ticket: Option<Ticket>,
}

impl Aliases {
    /// Creates the aliases of the configuration.
    pub fn new(configs: &[ModelAlias], metrics: &AliasMetrics) -> Self {
        let alias = |config: &ModelAlias| {
            let copies = config.shadow.as_ref().map_or(0, |shadow| shadow.max_in_flight);
            Arc::new(Alias {
                config: config.clone(),
                metrics: metrics.clone(),
                rollout: RwLock::default(),
                copies: Arc::new(Semaphore::new(copies)),
            })
        };
        Self(configs.iter().map(alias).collect())
    }

    /// Whether there are no aliases.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The alias with this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Alias>> {
        self.0.iter().find(|alias| alias.config.name == name)
    }

    /// All aliases.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Alias>> {
        self.0.iter()
    }
}

impl Alias {
    /// Chooses the models of a request at `point` in the range of `u64`. The new version of a roll-out has
    /// the end of the range, so that its requests stay with it while its share grows.
    pub fn choose(&self, point: u64) -> Choice {
        let ticket = self.rollout().and_then(|rollout| rollout.ticket_at(point));
        let new = ticket.as_ref().and_then(Ticket::new_model).map(str::to_owned);
        let mut models: Vec<String> = new.into_iter().collect();
        let targets = weighted(&self.config, point).into_iter();
        for model in targets.chain(self.config.fallback.iter().map(String::as_str)) {
            if models.iter().all(|known| known != model) {
                models.push(model.to_owned());
            }
        }
        Choice { models, ticket }
    }

    /// The latest roll-out.
    pub fn rollout(&self) -> Option<Arc<RunningRollout>> {
        self.rollout.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a roll-out, unless one is running.
    pub fn begin(&self, model: String, plan: Plan, golden: Vec<Golden>) -> Option<Arc<RunningRollout>> {
        let mut latest = self.rollout.write().unwrap_or_else(PoisonError::into_inner);
        if latest.as_ref().is_some_and(|latest| latest.is_running()) {
            return None;
        }
        let names = (self.config.name.clone(), model);
        let rollout = Arc::new(RunningRollout::new(names, plan, golden, &self.metrics));
        *latest = Some(rollout.clone());
        Some(rollout)
    }

    /// Decides at random whether this request is copied to the shadow model. The permit counts the copy
    /// while it runs; `None` in its place if the maximum number of copies runs.
    pub fn copy(&self) -> Option<(&ShadowConfig, Option<OwnedSemaphorePermit>)> {
        let shadow = self.config.shadow.as_ref().filter(|shadow| fastrand::u32(..100) < shadow.percent)?;
        Some((shadow, self.copies.clone().try_acquire_owned().ok()))
    }
}

/// The target whose part of the range includes `point`. Raising the weight of the last target moves no
/// session between the others.
fn weighted(alias: &ModelAlias, point: u64) -> Option<&str> {
    let total: u64 = alias.targets.iter().map(|target| u64::from(target.weight)).sum();
    let mut place = (u128::from(point) * u128::from(total)) >> 64;
    for target in &alias.targets {
        match place.checked_sub(u128::from(target.weight)) {
            Some(rest) => place = rest,
            None => return Some(&target.model),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::config::WeightedModel;

    fn config(weights: [u32; 2], fallback: &[&str]) -> ModelAlias {
        let target = |(model, weight): (&str, u32)| WeightedModel { model: model.to_owned(), weight };
        ModelAlias {
            name: "chat".to_owned(),
            targets: ["old", "new"].into_iter().zip(weights).map(target).collect(),
            fallback: fallback.iter().map(|model| (*model).to_owned()).collect(),
            shadow: None,
        }
    }

    #[test]
    fn sessions_are_divided_by_weight_and_stay_when_a_canary_grows() {
        let (few, more) = (config([95, 5], &[]), config([80, 20], &[]));
        let mut random = fastrand::Rng::with_seed(7);
        let mut n_new = [0, 0];
        for session in 0..10_000 {
            let point = random.u64(..);
            let (before, after) = (weighted(&few, point), weighted(&more, point));
            assert!(before == Some("old") || after == Some("new"), "{session} went back");
            n_new[0] += usize::from(before == Some("new"));
            n_new[1] += usize::from(after == Some("new"));
        }
        assert!((400..600).contains(&n_new[0]) && (1_850..2_150).contains(&n_new[1]), "{n_new:?}");
        assert_eq!(weighted(&config([0, 1], &[]), 0), Some("new"));
        assert_eq!(weighted(&config([1, 0], &[]), u64::MAX), Some("old"));
    }

    #[test]
    fn no_model_is_asked_twice() {
        let metrics = AliasMetrics::register(&mut Registry::default());
        let aliases = Aliases::new(&[config([1, 0], &["new", "old", "other"])], &metrics);
        let chat = aliases.find("chat").expect("an alias");
        assert_eq!(chat.choose(0).models, ["old", "new", "other"]);
        assert!(chat.copy().is_none() && aliases.find("old").is_none());
    }
}
