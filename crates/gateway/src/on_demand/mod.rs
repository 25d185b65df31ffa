//! Models of this process that are loaded on request and unloaded for room, by time or by the operator. The
//! decisions are those of [`Residency`]. Does not load.

mod pulls;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use throng_core::fleet::{Residency, Standing, Step};
use throng_engine::{EngineHandle, EngineState};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::config::{OnDemandConfig, OnRequest};
use crate::router::Router;
use crate::served_model::ServedModel;
use throng_api::ApiError;
use throng_api::ollama::ModelDescription;
use throng_http::retry_after::retry_after_s;
use throng_metering::HeldBytes;

pub(crate) use self::pulls::PullState;
use self::pulls::Pulls;
pub use self::pulls::{FileProgress, PullFault};

/// Interval at which waiting requests check for idle models, and unused models are searched for.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Longest wait of an operator's request to load a model.
const OPERATORS_WAIT: Duration = Duration::from_secs(600);
/// Longest wait of a client that has a model unloaded, which requests of others may keep in memory.
const MAX_GOING: Duration = Duration::from_secs(5);
/// Longest time for an engine to end.
const ENDING: Duration = Duration::from_secs(10);

/// Loader of models that the operator has named.
pub trait ModelLoader: Debug + Send + Sync {
    /// Loads the model with this name, or returns the reason why it cannot be loaded.
    fn load(&self, name: &str) -> BoxFuture<'static, Result<ServedModel, String>>;

    /// Loads the main model again.
    fn load_main(&self) -> BoxFuture<'static, Result<ServedModel, String>>;

    /// Downloads a model of the hub into the cache of this machine, and passes the progress to `report`.
    /// Blocks the thread.
    ///
    /// # Errors
    /// [`PullFault`]; by default, that the operator does not allow it.
    fn pull(&self, _name: &str, _report: &mut dyn FnMut(FileProgress)) -> Result<OnDemandModel, PullFault> {
        Err(PullFault::Forbidden)
    }
}

/// Interface to the served models.
pub(crate) trait Serving: Send + Sync {
    /// Router of the served models.
    fn router(&self) -> &Router;

    /// Adds a model to the served ones, and returns its bytes.
    ///
    /// # Errors
    /// When one of its names is another model's.
    fn add(&self, served: ServedModel) -> Result<HeldBytes, String>;

    /// Longest time for running requests of a model that is unloaded.
    fn patience(&self) -> Duration;
}

/// Interface through which [`OnDemandModels`] serves its models.
type Place = Arc<dyn Serving>;

/// A model that may be loaded while the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemandModel {
    /// Name in requests.
    pub name: String,
    /// Bytes in memory, if known.
    pub n_bytes: u64,
}

/// A model's name, and the number of failed attempts to load it.
#[derive(Debug)]
struct Known {
    name: String,
    /// Further names of the main model.
    other_names: Vec<String>,
    /// Names of the adapters that the model had when it was unloaded.
    adapters: Mutex<Vec<String>>,
    /// Description of the model from when it was last in memory.
    description: Mutex<Option<ModelDescription>>,
    n_faults: AtomicU64,
    /// One more reference for each request on its way to the model.
    requests: Presence,
}

impl Known {
    fn new(name: String, other_names: Vec<String>) -> Arc<Self> {
        let (adapters, description, n_faults, requests) = Default::default();
        Arc::new(Self { name, other_names, adapters, description, n_faults, requests })
    }
}

/// Reference that a request holds from the moment at which its model is in memory until it has been submitted
/// to it. The model is not unloaded meanwhile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Arc<()>);

impl Presence {
    /// Whether a clone of this one is held.
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// All models that are loaded on demand.
#[derive(Debug)]
pub struct OnDemandModels {
    config: OnDemandConfig,
    loader: Arc<dyn ModelLoader>,
    /// Models by their numbers; locked after [`Self::residency`] if both are needed.
    known: RwLock<Vec<Arc<Known>>>,
    residency: Mutex<Residency>,
    pulls: Pulls,
    /// Whether a request may name a model that is not in memory.
    may_be_absent: AtomicBool,
    /// One more reference for each request that came while no model could be absent.
    requests: Presence,
    /// Number of changes, watched by waiting requests.
    changed: watch::Sender<u64>,
    origin: Instant,
}

impl OnDemandModels {
    /// Creates the set without a loaded model.
    pub fn new(
        config: OnDemandConfig,
        models: Vec<OnDemandModel>,
        loader: Arc<dyn ModelLoader>,
    ) -> Arc<Self> {
        let max_bytes = config.max_memory_bytes.unwrap_or(u64::MAX);
        let may_be_absent = AtomicBool::new(!models.is_empty() || config.max_pulled_bytes.is_some());
        let residency = Mutex::new(Residency::new(models.iter().map(|model| model.n_bytes), max_bytes));
        let known = RwLock::new(models.into_iter().map(|model| Known::new(model.name, Vec::new())).collect());
        let (changed, origin) = (watch::Sender::new(0), Instant::now());
        let (pulls, requests) = (Pulls::default(), Presence::default());
        Arc::new(Self { config, loader, known, residency, pulls, may_be_absent, requests, changed, origin })
    }

    /// Adds the main model, which is loaded and may be put to sleep.
    pub fn add_main(&self, mut names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        let name = names.remove(0);
        self.residency().add_main();
        self.known.write().unwrap_or_else(PoisonError::into_inner).push(Known::new(name, names));
    }

    /// Whether a request may name a model that is not in memory.
    pub(crate) fn may_be_absent(&self) -> bool {
        self.may_be_absent.load(Ordering::Relaxed)
    }

    /// Presence of a request whose model need not be looked up, since all models are in memory; `None` once
    /// one may be absent.
    pub(crate) fn enter(&self) -> Option<Presence> {
        // Under the lock, so that whoever unloads a model sees either this request or one that looks it up.
        let _residency = self.residency();
        (!self.may_be_absent()).then(|| self.requests.clone())
    }

    /// Names of all models.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all_known().iter().map(|known| known.name.clone()).collect()
    }

    /// State of the model with this name; `None` for other names.
    pub(crate) fn state(&self, name: &str) -> Option<&'static str> {
        Some(state_name(&self.residency(), self.number_of(name)?))
    }

    /// Description of the model with this name if it is not in memory but was before.
    pub(crate) fn description_of_absent(&self, name: &str) -> Option<ModelDescription> {
        let number = self.number_of(name)?;
        let is_absent = self.residency().standing(number) == Standing::Absent;
        is_absent.then(|| lock(&self.known(number).description).clone()).flatten()
    }

    /// Time after which the model with this name is unloaded if nobody asks for it; `None` if it stays.
    pub(crate) fn leaves_in(&self, name: &str) -> Option<Duration> {
        let idle = Duration::from_secs(Some(self.config.idle_unload_s).filter(|idle| *idle > 0)?);
        let at = self.residency().leaves_at(self.number_of(name)?, idle)?;
        Some(at.saturating_sub(self.now()))
    }

    /// Names of all models with their states, as shown to clients and the operator.
    pub(crate) fn states(&self) -> Vec<(String, &'static str)> {
        let residency = self.residency();
        let state = |number| state_name(&residency, number);
        let known = self.all_known();
        known.iter().enumerate().map(|(number, known)| (known.name.clone(), state(number))).collect()
    }

    /// Sets how long the model with this name stays in memory without requests, if the operator unloads
    /// unused models; with [`Duration::MAX`] until another model needs its memory. Returns whether it is
    /// set.
    pub(crate) fn keep(&self, name: &str, stay: Duration) -> bool {
        match self.named(name, false) {
            Ok(number) if self.config.idle_unload_s > 0 => self.residency().keep(number, stay),
            _ => return false,
        }
        true
    }

    /// Waits until the model with this name is not in memory, for [`MAX_GOING`] at most.
    pub(crate) async fn gone(&self, name: &str) {
        let (deadline, mut changed) = (Instant::now() + MAX_GOING, self.changed.subscribe());
        while self.state(name).is_some_and(|state| state != "unloaded") && Instant::now() < deadline {
            let _ = timeout_at(deadline, changed.changed()).await;
        }
    }

    /// Downloads a model of the hub into the cache, and then adds it. A running download of the model is
    /// watched; `has` returns whether a name belongs to another model.
    ///
    /// # Errors
    /// 503 while another model is downloaded.
    pub(crate) fn pull(
        self: &Arc<Self>,
        name: &str,
        has: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<watch::Receiver<PullState>, ApiError> {
        let this = self.clone();
        self.pulls.watch(name, move |name, report| {
            let model = this.loader.pull(name, report)?;
            if this.number_of(&model.name).is_none() && !has(&model.name) {
                this.add(model);
            }
            Ok(())
        })
    }

    /// Adds a model; the loader bounds their number.
    fn add(&self, model: OnDemandModel) {
        let mut residency = self.residency();
        residency.add(model.n_bytes);
        self.known.write().unwrap_or_else(PoisonError::into_inner).push(Known::new(model.name, Vec::new()));
    }

    /// Loads the model with this name, or with an adapter of this name, as configured; other names are
    /// ignored. It stays in memory while the request holds its [`Presence`].
    ///
    /// # Errors
    /// 503 if it is not in memory and is not loaded in time.
    pub(crate) async fn ready(self: &Arc<Self>, place: &Place, name: &str) -> Result<Presence, ApiError> {
        let Some(number) = self.number_of(name).or_else(|| self.number_of_adapter(&**place, name)) else {
            return Ok(Presence::default());
        };
        let wait = match self.config.on_request {
            OnRequest::Wait => Duration::from_millis(self.config.wait_ms),
            OnRequest::Refuse => Duration::ZERO,
            OnRequest::Never => match self.residency().standing(number) {
                Standing::Loaded => Duration::ZERO,
                _ => return Err(ApiError::model_not_loaded(name)),
            },
        };
        self.come(place, number, wait).await
    }

    /// Number of a model that the operator names; the main one only if `may_be_main`.
    ///
    /// # Errors
    /// 404 for another name; 400 for the main model otherwise.
    fn named(&self, name: &str, may_be_main: bool) -> Result<usize, ApiError> {
        match self.number_of(name) {
            Some(number) if !may_be_main && self.residency().is_main(number) => {
                let message = "This is the server's first model: it is put to sleep by /v1/models/sleep.";
                Err(ApiError::invalid_value("model", message))
            }
            Some(number) => Ok(number),
            None => Err(ApiError::model_not_found(name).with_models(&self.names())),
        }
    }

    /// Loads a model for the operator, the main one only if `may_be_main`.
    ///
    /// # Errors
    /// 404 for another name; 503 if it cannot be loaded.
    pub(crate) async fn load(
        self: &Arc<Self>,
        place: &Place,
        name: &str,
        may_be_main: bool,
    ) -> Result<(), ApiError> {
        self.come(place, self.named(name, may_be_main)?, OPERATORS_WAIT).await.map(drop)
    }

    /// Unloads a model for the operator, once it is loaded and its requests have ended; the main one only if
    /// `may_be_main`.
    ///
    /// # Errors
    /// 404 for another name; 503 if it is not loaded in time.
    pub(crate) async fn unload(
        self: &Arc<Self>,
        place: &Place,
        name: &str,
        may_be_main: bool,
    ) -> Result<(), ApiError> {
        let number = self.named(name, may_be_main)?;
        let (deadline, mut changed) = (Instant::now() + OPERATORS_WAIT, self.changed.subscribe());
        loop {
            if self.begin_to_unload(number) {
                // In a task of its own: unloading continues when the connection that asked for it is closed.
                let (this, place) = (self.clone(), place.clone());
                let _ = tokio::spawn(async move { this.take_away(&*place, number).await }).await;
                return Ok(());
            }
            if self.residency().standing(number) == Standing::Absent {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ApiError::model_not_ready(None, retry_after_s()));
            }
            let _ = timeout_at(deadline.min(Instant::now() + LOOK_AGAIN), changed.changed()).await;
        }
    }

    /// Begins to unload a model; `false` if it is not loaded.
    fn begin_to_unload(&self, number: usize) -> bool {
        let mut residency = self.residency();
        let begins = residency.leave(number);
        self.may_be_absent.fetch_or(begins, Ordering::Relaxed);
        begins
    }

    /// Unloads models that have had no requests for longer than the operator has set; runs beside the
    /// server.
    pub(crate) async fn unload_unused(self: Arc<Self>, place: Place) {
        let idle = Duration::from_secs(self.config.idle_unload_s);
        while !idle.is_zero() {
            tokio::time::sleep(LOOK_AGAIN).await;
            let unused = self.residency().idle_for(idle, self.now(), |number| self.is_idle(&*place, number));
            if let Some(number) = unused {
                self.take_away(&*place, number).await;
            }
        }
    }

    async fn come(
        self: &Arc<Self>,
        place: &Place,
        number: usize,
        wait: Duration,
    ) -> Result<Presence, ApiError> {
        let deadline = Instant::now() + wait;
        let mut changed = self.changed.subscribe();
        let known = self.known(number);
        let n_faults = known.n_faults.load(Ordering::Relaxed);
        loop {
            // Held before the look at the model's state, so that it is seen by whoever then begins to unload it.
            let presence = known.requests.clone();
            let step = self.residency().wanted(number, self.now(), |other| self.is_idle(&**place, other));
            if step == Step::Ask {
                return Ok(presence);
            }
            drop(presence);
            let (this, place) = (self.clone(), place.clone());
            match step {
                Step::Ask | Step::Wait => {}
                Step::Load => drop(tokio::spawn(async move { this.bring(&*place, number).await })),
                Step::Unload(other) => {
                    drop(tokio::spawn(async move { this.take_away(&*place, other).await }))
                }
            }
            if known.n_faults.load(Ordering::Relaxed) != n_faults {
                return Err(ApiError::model_load_failed(&known.name, retry_after_s()));
            }
            if Instant::now() >= deadline {
                return Err(ApiError::model_not_ready(None, retry_after_s()));
            }
            let until = deadline.min(Instant::now() + LOOK_AGAIN);
            let _ = timeout_at(until, changed.changed()).await;
        }
    }

    async fn bring(&self, place: &dyn Serving, number: usize) {
        let known = self.known(number);
        let name = &known.name;
        tracing::info!(model = name, "loading a model");
        let is_main = self.residency().is_main(number);
        let loading = if is_main { self.loader.load_main() } else { self.loader.load(name) };
        let loaded = loading.await.and_then(|served| place.add(served));
        let n_bytes = match loaded {
            Ok(held) => {
                tracing::info!(model = name, "loaded a model");
                Some(held.weights.saturating_add(held.kv))
            }
            Err(error) => {
                tracing::error!(model = name, error, "a model cannot be loaded");
                known.n_faults.fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        self.residency().loaded(number, n_bytes, self.now());
        self.tell();
    }

    async fn take_away(&self, place: &dyn Serving, number: usize) {
        let known = self.known(number);
        let name = &known.name;
        let began = Instant::now();
        let patience = || place.patience().saturating_sub(began.elapsed());
        // Requests that have found the model in memory are submitted to it first.
        until(patience(), || !known.requests.is_held() && !self.requests.is_held()).await;
        let removed = place.router().remove(name).inspect(|route| {
            let adapters = route.model.adapters.list().into_iter().map(|(adapter, _)| adapter);
            *lock(&known.adapters) = adapters.collect();
            *lock(&known.description) = Some(route.model.served.description());
        });
        let engines = removed.map(|route| route.model.served.engines.clone()).unwrap_or_default();
        until(patience(), || engines.iter().all(has_nothing_to_do)).await;
        engines.iter().for_each(EngineHandle::shutdown);
        until(ENDING, || engines.iter().all(|engine| engine.state() >= EngineState::Stopped)).await;
        tracing::info!(model = name, "unloaded a model");
        self.residency().left(number);
        self.tell();
    }

    fn is_idle(&self, place: &dyn Serving, number: usize) -> bool {
        let route = place.router().get(&self.known(number).name);
        route.is_some_and(|route| route.model.served.engines.iter().all(has_nothing_to_do))
    }

    fn number_of(&self, name: &str) -> Option<usize> {
        let is_named = |known: &Arc<Known>| known.name == name || known.other_names.iter().any(|n| n == name);
        self.all_known().iter().position(is_named)
    }

    /// Number of the model that has, or had when it was unloaded, an adapter of this name.
    fn number_of_adapter(&self, place: &dyn Serving, name: &str) -> Option<usize> {
        let present = place.router().get(name).and_then(|route| self.number_of(route.model.served.id()));
        let had = |known: &Arc<Known>| lock(&known.adapters).iter().any(|adapter| adapter == name);
        present.or_else(|| self.all_known().iter().position(had))
    }

    fn known(&self, number: usize) -> Arc<Known> {
        self.all_known()[number].clone()
    }

    fn all_known(&self) -> RwLockReadGuard<'_, Vec<Arc<Known>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn residency(&self) -> MutexGuard<'_, Residency> {
        lock(&self.residency)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state_name(residency: &Residency, number: usize) -> &'static str {
    match residency.standing(number) {
        Standing::Absent if residency.is_main(number) => "sleeping",
        Standing::Absent => "unloaded",
        Standing::Loading => "loading",
        Standing::Loaded => "loaded",
        Standing::Leaving => "unloading",
    }
}

fn has_nothing_to_do(engine: &EngineHandle) -> bool {
    let stats = engine.stats().scheduler;
    stats.running + stats.waiting + stats.paused + stats.queued_requests == 0
}

/// Waits until a condition holds, for a bounded time.
async fn until(limit: Duration, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
