//! The models that upstream engines serve, and the engines of each. Does not know requests.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use throng_core::fleet::health::{HealthConfig, State};
use throng_core::fleet::routing::ReplicaId;
use throng_core::time::Nanos;

use super::connection::Upstream;
use super::fault::Fault;
use super::request::named_model;
use crate::dispatch::{Dispatcher, RoutingSettings};

/// Maximum number of upstream models.
pub const MAX_MODELS: usize = 256;

/// The models of all upstream engines. A model remains when its last engine is removed.
#[derive(Debug, Default)]
pub struct UpstreamModels {
    models: RwLock<Arc<[Arc<UpstreamModel>]>>,
    /// Engines that serve no model: they have not listed their models yet, or cannot serve them.
    idle: RwLock<Vec<Arc<Upstream>>>,
    /// Lock that is held while an engine joins: engines of one model that join at once must find the same
    /// model.
    joining: Mutex<()>,
}

/// A model that upstream engines serve.
#[derive(Debug)]
pub struct UpstreamModel {
    /// Names of the model in requests; the first is its id.
    pub names: Vec<String>,
    /// Dispatcher of the model's requests.
    pub dispatcher: Arc<Dispatcher>,
    replicas: RwLock<Vec<Arc<UpstreamReplica>>>,
}

/// One engine of a model.
#[derive(Debug)]
pub struct UpstreamReplica {
    /// Id at the dispatcher.
    pub id: ReplicaId,
    /// The engine behind the replica.
    pub upstream: Arc<Upstream>,
    /// Name of the model at the engine.
    pub model_there: String,
    /// Index of the kind of probe that the engine has answered, if any.
    pub(super) probe: AtomicUsize,
    /// Latest fault, for operators.
    last_fault: Mutex<Option<String>>,
}

impl UpstreamModels {
    /// The current models.
    pub fn now(&self) -> Arc<[Arc<UpstreamModel>]> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets one engine join at a time, until the guard is dropped.
    pub fn joining(&self) -> MutexGuard<'_, ()> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model with this name.
    pub fn find(&self, name: &str) -> Option<Arc<UpstreamModel>> {
        self.now().iter().find(|model| model.answers_to(name)).cloned()
    }

    /// The model of a request: its alias's target, else the one named in its body.
    pub fn asked_for(&self, target: Option<&str>, body: &[u8]) -> Option<Arc<UpstreamModel>> {
        match target {
            Some(target) => self.find(target),
            None => self.named_in(body),
        }
    }

    /// The model named in the body of a request.
    pub fn named_in(&self, body: &[u8]) -> Option<Arc<UpstreamModel>> {
        if self.now().is_empty() {
            return None;
        }
        self.find(&named_model(body)?)
    }

    /// The only model, if there is exactly one.
    pub fn only(&self) -> Option<Arc<UpstreamModel>> {
        match &*self.now() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// Engines that serve no model.
    pub fn idle(&self) -> Vec<Arc<Upstream>> {
        self.idle.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of engines that serve no model, and number of those that fail.
    pub fn n_idle_and_failing(&self) -> (usize, usize) {
        let idle = self.idle();
        let n_failing = idle.iter().filter(|engine| engine.trouble.present().is_some()).count();
        (idle.len(), n_failing)
    }

    /// Whether some engine has neither answered nor failed yet.
    pub fn are_starting(&self) -> bool {
        let is_starting = |model: &Arc<UpstreamModel>| {
            let replicas = model.replicas();
            replicas.iter().any(|replica| model.dispatcher.state(replica.id).0 == State::Starting)
        };
        self.now().iter().any(is_starting)
    }

    /// Whether an engine serves any model.
    pub fn serves(&self, upstream: &Arc<Upstream>) -> bool {
        !self.of_upstream(upstream).is_empty()
    }

    /// Records whether an engine serves no model.
    pub fn set_idle(&self, upstream: &Arc<Upstream>, is_idle: bool) {
        let mut idle = self.idle.write().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|known| !Arc::ptr_eq(known, upstream));
        if is_idle {
            idle.push(upstream.clone());
        }
    }

    /// Sends no further requests to an engine, for any model.
    pub fn drain(&self, upstream: &Arc<Upstream>) {
        self.of_upstream(upstream).iter().for_each(|(model, id)| model.dispatcher.drain(*id));
    }

    /// Number of requests that an engine runs.
    pub fn n_running(&self, upstream: &Arc<Upstream>) -> usize {
        self.of_upstream(upstream).iter().map(|(model, id)| model.dispatcher.n_running(*id)).sum()
    }

    /// Removes an engine from all models. Its running requests go on.
    pub fn remove(&self, upstream: &Arc<Upstream>) {
        self.set_idle(upstream, false);
        for (model, id) in self.of_upstream(upstream) {
            model.replicas.write().unwrap_or_else(PoisonError::into_inner).retain(|known| known.id != id);
            model.dispatcher.remove(id);
        }
    }

    /// The models that an engine serves, with its replica id in each.
    fn of_upstream(&self, upstream: &Arc<Upstream>) -> Vec<(Arc<UpstreamModel>, ReplicaId)> {
        let of_model = |model: &Arc<UpstreamModel>| {
            let own = model.replicas().into_iter().filter(|replica| Arc::ptr_eq(&replica.upstream, upstream));
            own.map(|replica| (model.clone(), replica.id)).collect::<Vec<_>>()
        };
        self.now().iter().flat_map(of_model).collect()
    }

    /// Adds a model.
    pub fn add(&self, model: Arc<UpstreamModel>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        *models = models.iter().cloned().chain([model]).collect();
    }
}

impl UpstreamModel {
    /// Creates a model without engines.
    pub fn new(names: Vec<String>, routing: &RoutingSettings) -> Self {
        // A probe is a request that may cost money, so only new and ejected engines get one.
        let health = HealthConfig { probe_interval: Nanos(u64::MAX), ..HealthConfig::default() };
        let dispatcher = Dispatcher::new(routing, health);
        Self { names, dispatcher, replicas: RwLock::default() }
    }

    /// Id of the model: its first name.
    pub fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Whether the model has this name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Adds an engine, which gets requests once it has answered a probe.
    pub fn add(&self, upstream: Arc<Upstream>, model_there: String) {
        let id = self.dispatcher.add(&upstream.name);
        self.dispatcher.set_region(id, upstream.region.clone());
        let (probe, last_fault) = Default::default();
        let replica = UpstreamReplica { id, upstream, model_there, probe, last_fault };
        self.replicas.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(replica));
    }

    /// Engines of the model.
    pub fn replicas(&self) -> Vec<Arc<UpstreamReplica>> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine with this id.
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<UpstreamReplica>> {
        self.replicas().into_iter().find(|replica| replica.id == id)
    }
}

impl UpstreamReplica {
    /// Records the latest fault; `None` clears it.
    pub(super) fn note(&self, fault: Option<&Fault>) {
        let told = fault.map(Fault::told);
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// Latest fault.
    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
