//! The models that upstream engines serve, and the engines of each. Does not know requests.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use throng_core::fleet::health::{HealthConfig, State};
use throng_core::fleet::routing::ReplicaId;
use throng_core::time::Nanos;

use super::connection::Upstream;
use super::fault::Fault;
use super::request::named_model;
use crate::dispatch::{Dispatcher, RoutingSettings};

/// Most upstream models.
pub const MAX_MODELS: usize = 256;

/// The models of all upstream engines. A model stays when its last engine goes.
#[derive(Debug, Default)]
pub struct UpstreamModels {
    models: RwLock<Arc<[Arc<UpstreamModel>]>>,
    /// Engines that serve nothing: they have not told their models yet, or cannot serve them.
    idle: RwLock<Vec<Arc<Upstream>>>,
}

/// A model that upstream engines serve.
#[derive(Debug)]
pub struct UpstreamModel {
    /// Names by which clients ask for it; the first is its id.
    pub names: Vec<String>,
    /// Distributes its requests.
    pub dispatcher: Arc<Dispatcher>,
    replicas: RwLock<Vec<Arc<UpstreamReplica>>>,
}

/// One engine that serves the model.
#[derive(Debug)]
pub struct UpstreamReplica {
    /// Its number for the dispatcher.
    pub id: ReplicaId,
    /// The engine.
    pub upstream: Arc<Upstream>,
    /// The model's name at the engine.
    pub model_there: String,
    /// The kind of request that it has answered a probe of, if any.
    pub(super) probe: AtomicUsize,
    /// The latest fault, for operators.
    last_fault: Mutex<Option<String>>,
}

impl UpstreamModels {
    /// The present models.
    pub fn now(&self) -> Arc<[Arc<UpstreamModel>]> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one that answers to a name.
    pub fn find(&self, name: &str) -> Option<Arc<UpstreamModel>> {
        self.now().iter().find(|model| model.answers_to(name)).cloned()
    }

    /// The one that a request is for: its alias's target, or the one that its body names.
    pub fn asked_for(&self, target: Option<&str>, body: &[u8]) -> Option<Arc<UpstreamModel>> {
        match target {
            Some(target) => self.find(target),
            None => self.named_in(body),
        }
    }

    /// The one that the body of a request names.
    pub fn named_in(&self, body: &[u8]) -> Option<Arc<UpstreamModel>> {
        if self.now().is_empty() {
            return None;
        }
        self.find(&named_model(body)?)
    }

    /// The only one, where there is one.
    pub fn only(&self) -> Option<Arc<UpstreamModel>> {
        match &*self.now() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// Engines that serve nothing.
    pub fn idle(&self) -> Vec<Arc<Upstream>> {
        self.idle.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of engines that serve nothing, and of those among them that fail.
    pub fn n_idle_and_failing(&self) -> (usize, usize) {
        let idle = self.idle();
        let n_failing = idle.iter().filter(|engine| engine.trouble.present().is_some()).count();
        (idle.len(), n_failing)
    }

    /// Whether an engine of some model has neither answered nor failed yet.
    pub fn are_starting(&self) -> bool {
        let is_starting = |model: &Arc<UpstreamModel>| {
            let replicas = model.replicas();
            replicas.iter().any(|replica| model.dispatcher.state(replica.id).0 == State::Starting)
        };
        self.now().iter().any(is_starting)
    }

    /// Whether an engine serves something.
    pub fn serves(&self, upstream: &Arc<Upstream>) -> bool {
        !self.of_upstream(upstream).is_empty()
    }

    /// Notes whether an engine serves something.
    pub fn set_idle(&self, upstream: &Arc<Upstream>, is_idle: bool) {
        let mut idle = self.idle.write().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|known| !Arc::ptr_eq(known, upstream));
        if is_idle {
            idle.push(upstream.clone());
        }
    }

    /// An engine gets no further requests of any model.
    pub fn drain(&self, upstream: &Arc<Upstream>) {
        self.of_upstream(upstream).iter().for_each(|(model, id)| model.dispatcher.drain(*id));
    }

    /// Requests that an engine runs.
    pub fn n_running(&self, upstream: &Arc<Upstream>) -> usize {
        self.of_upstream(upstream).iter().map(|(model, id)| model.dispatcher.n_running(*id)).sum()
    }

    /// An engine is gone. What it still runs goes on.
    pub fn remove(&self, upstream: &Arc<Upstream>) {
        self.set_idle(upstream, false);
        for (model, id) in self.of_upstream(upstream) {
            model.replicas.write().unwrap_or_else(PoisonError::into_inner).retain(|known| known.id != id);
            model.dispatcher.remove(id);
        }
    }

    /// The models that an engine serves, with its number in each.
    fn of_upstream(&self, upstream: &Arc<Upstream>) -> Vec<(Arc<UpstreamModel>, ReplicaId)> {
        let of_model = |model: &Arc<UpstreamModel>| {
            let own = model.replicas().into_iter().filter(|replica| Arc::ptr_eq(&replica.upstream, upstream));
            own.map(|replica| (model.clone(), replica.id)).collect::<Vec<_>>()
        };
        self.now().iter().flat_map(of_model).collect()
    }

    /// Adds one.
    pub fn add(&self, model: Arc<UpstreamModel>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        *models = models.iter().cloned().chain([model]).collect();
    }
}

impl UpstreamModel {
    /// A model without engines.
    pub fn new(names: Vec<String>, routing: &RoutingSettings) -> Self {
        // A probe is a request that somebody pays for: only engines that are new or ejected get one.
        let health = HealthConfig { probe_interval: Nanos(u64::MAX), ..HealthConfig::default() };
        let dispatcher = Dispatcher::new(routing, health);
        Self { names, dispatcher, replicas: RwLock::default() }
    }

    /// The id: the first name.
    pub fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Whether requests may call it so.
    pub fn answers_to(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// An engine serves it from now on, once it has answered a probe.
    pub fn add(&self, upstream: Arc<Upstream>, model_there: String) {
        let id = self.dispatcher.add(&upstream.name);
        self.dispatcher.set_region(id, upstream.region.clone());
        let (probe, last_fault) = Default::default();
        let replica = UpstreamReplica { id, upstream, model_there, probe, last_fault };
        self.replicas.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(replica));
    }

    /// Its engines.
    pub fn replicas(&self) -> Vec<Arc<UpstreamReplica>> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine of this number.
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<UpstreamReplica>> {
        self.replicas().into_iter().find(|replica| replica.id == id)
    }
}

impl UpstreamReplica {
    /// Notes what went wrong, or that nothing does any more.
    pub(super) fn note(&self, fault: Option<&Fault>) {
        let told = fault.map(Fault::told);
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// The latest fault.
    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
