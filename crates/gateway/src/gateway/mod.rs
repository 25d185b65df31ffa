//! The gateway's interface for programs: it is created from a configuration and models, and serves on a
//! socket. Refuses to serve other machines without a key.

mod error;
mod fleet_models;
mod followed;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use throng_core::engine::recording::LoadObserver;
use throng_http::{Listener, Phase, Shutdown, Tls};
use throng_state::batches::{Answerer, LineAnswer, LineRequest};
use tokio::sync::{Notify, oneshot, watch};

use crate::app::{App, Shared};
use crate::batches::{LineAnswers, answer_batches};
use crate::config::{AccessConfig, GatewayConfig, check_semantic_cache};
use crate::kept::principal_of;
use crate::loading::Progress;
use crate::moderation::Moderation;
use crate::on_demand::OnDemandModels;
use crate::plan_page::{MakePlanPage, PlanPage};
use crate::routes::{self, Audience};
use crate::served_model::ServedModel;
use crate::server::{self, Served, Service};
use crate::turns::adopt_orphans;
use throng_auth::{ApiKeys, Tenant};
use throng_cache::DiskTier;
use throng_fleet::Secret;
use throng_fleet::replica::FleetRecording;
use throng_metering::ledger::PriceTable;
use throng_metering::metrics::ProcessFacts;
use throng_metering::observation::{Observation, RequestObserver};
use throng_tools::Toolbox;

pub use self::error::GatewayError;

/// Seconds for the last answers to the operator after the server for clients has ended.
const ADMIN_SHUTDOWN_S: u64 = 1;
/// Maximum number of connections to the listener for Ollama's clients, taken from those of the other one.
const MAX_OLLAMA_CONNECTIONS: usize = 1024;

/// Serves models over HTTP.
#[derive(Debug)]
pub struct Gateway {
    loading: Loading,
    observers: Vec<Arc<dyn RequestObserver>>,
    admin_listener: Option<Listener>,
    ollama_listener: Option<Listener>,
}

/// Adds the models to a running gateway. Before that, requests for models are answered with 503
/// `model_not_ready`. Clones belong to the same gateway.
#[derive(Debug, Clone)]
pub struct Loading {
    config: GatewayConfig,
    shared: Shared,
    progress: Arc<Progress>,
    served: Arc<watch::Sender<Served>>,
    served_to_operator: Arc<watch::Sender<Served>>,
    served_to_ollama_clients: Arc<watch::Sender<Served>>,
    loaded: Arc<OnceLock<Arc<App>>>,
    tls: Option<Arc<Tls>>,
}

impl Loading {
    /// Notifies this observer of the requests that workers compute. To be called before the fleet is started.
    pub fn record(&self, observer: Arc<dyn LoadObserver>) {
        self.shared.recording.get_or_init(|| FleetRecording::new(observer));
    }

    /// Offers the page that `make` returns as `/plan`, to operators.
    pub fn offer_plan(&self, make: Arc<MakePlanPage>) {
        self.shared.plan.get_or_init(|| PlanPage::new(make));
    }
}

impl Gateway {
    /// Creates a gateway with models. `process` is for the metrics.
    ///
    /// # Errors
    /// Errors of [`GatewayError`] except [`GatewayError::Io`].
    pub fn new(
        config: GatewayConfig,
        models: Vec<ServedModel>,
        process: ProcessFacts,
    ) -> Result<Self, GatewayError> {
        let (gateway, loading) = Self::loading(config, process)?;
        loading.finish(models)?;
        Ok(gateway)
    }

    /// Creates a gateway that can serve at once. It answers that its models are being loaded until
    /// [`Loading::finish`] adds them.
    ///
    /// # Errors
    /// Errors of [`Self::new`] except those for models' names.
    pub fn loading(config: GatewayConfig, process: ProcessFacts) -> Result<(Self, Loading), GatewayError> {
        let host = config.server.host_name();
        let is_local = config.server.uds.is_some()
            || host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        check_bind(&config.access, is_local, host)?;
        check_keys(&config.access)?;
        check_admin(&config.access)?;
        let price = "dollars for a million tokens, from 0 to 1000 with at most six decimals";
        PriceTable::new(&config.prices).map_err(|value| invalid(("gateway.prices", value, price)))?;
        config.autoscale.check().map_err(invalid)?;
        let has_cache = config.response_cache.max_memory_bytes > 0;
        let semantic =
            config.semantic_cache.as_ref().map(|semantic| check_semantic_cache(semantic, has_cache));
        semantic.transpose().map_err(invalid)?;
        server::check(&config).map_err(invalid)?;
        let tls = config.tls.as_ref().map(Tls::load).transpose()?.map(Arc::new);
        let mut shared = Shared::new(&config, process);
        shared.moderation = Arc::new(Moderation::new(&config.moderation).map_err(GatewayError::Moderation)?);
        shared.disk = DiskTier::of(&config.response_cache).map_err(GatewayError::Cache)?;
        if config.tools.is_on() {
            shared.tools = Some(Arc::new(Toolbox::open(&config.tools).map_err(GatewayError::Tools)?));
        }
        shared.image_hosts = Arc::new(config.api.image_hosts().map_err(GatewayError::ImageHost)?);
        let progress = Arc::new(Progress::of(shared.fleet_members()));
        let app = App::new(config.clone(), Vec::new(), shared.clone(), Some(progress.clone()));
        let app = Arc::new(app);
        let sender = |audience| Arc::new(watch::Sender::new(served(&app, audience)));
        let loading = Loading {
            served: sender(Audience::Clients),
            served_to_operator: sender(Audience::Operator),
            served_to_ollama_clients: sender(Audience::OllamaClients),
            loaded: Arc::default(),
            config,
            shared,
            progress,
            tls,
        };
        let (observers, admin_listener, ollama_listener) = Default::default();
        let gateway = Self { loading: loading.clone(), observers, admin_listener, ollama_listener };
        Ok((gateway, loading))
    }

    /// Adds observers that are notified of each ended request.
    pub fn observed_by(mut self, observers: Vec<Arc<dyn RequestObserver>>) -> Self {
        self.observers = observers;
        self
    }

    /// Adds a listener for the operator.
    pub fn with_admin_listener(mut self, listener: impl Into<Listener>) -> Self {
        self.admin_listener = Some(listener.into());
        self
    }

    /// Adds a listener for clients of Ollama, whose `GET /` answers that Ollama is running.
    pub fn with_ollama_listener(mut self, listener: impl Into<Listener>) -> Self {
        self.ollama_listener = Some(listener.into());
        self
    }

    /// Serves on `listener` until `shutdown` completes or the operator drains the server; then waits for
    /// running requests, for at most `shutdown_timeout_s`, and aborts the rest.
    ///
    /// # Errors
    /// [`GatewayError::Unauthenticated`] for a listener that does not match the configured host, and
    /// [`GatewayError::Io`].
    pub async fn serve(
        self,
        listener: impl Into<Listener> + Send,
        shutdown: impl Future<Output = impl Into<Shutdown> + Send> + Send,
    ) -> Result<(), GatewayError> {
        let listener = listener.into();
        let Loading {
            mut config,
            shared,
            served,
            served_to_operator,
            served_to_ollama_clients,
            loaded,
            tls,
            ..
        } = self.loading;
        for listener in [Some(&listener), self.ollama_listener.as_ref()].into_iter().flatten() {
            check_bind(&config.access, listener.is_local(), &listener.place())?;
        }
        let shutdown = how_it_ends(shutdown, shared.ending.clone());
        let (phase, memory, max_streams) = (shared.phase, shared.memory, server::MAX_CLIENT_STREAMS);
        let (observers, keeps_bodies) = (self.observers, config.observability.access_log_bodies);
        let observation =
            Arc::new(Observation { recent: shared.recent, observers: observers.clone(), keeps_bodies });
        // Answers the operator while the other one drains.
        let of_operator = Service {
            served: served_to_operator.subscribe(),
            config: operators_config(&config),
            phase: watch::Sender::new(Phase::Serving),
            memory: memory.clone(),
            tls: tls.clone(),
            max_streams,
            observation: Arc::new(Observation { recent: Arc::default(), observers, keeps_bodies }),
        };
        let half = MAX_OLLAMA_CONNECTIONS.min(config.server.max_connections / 2).max(1);
        let n_ollama = self.ollama_listener.as_ref().map_or(0, |_| half);
        let mut of_ollama_clients = Service {
            served: served_to_ollama_clients.subscribe(),
            config: config.clone(),
            phase: phase.clone(),
            memory: memory.clone(),
            tls: tls.clone(),
            max_streams,
            observation: observation.clone(),
        };
        of_ollama_clients.config.server.max_connections = n_ollama;
        config.server.max_connections -= n_ollama.min(config.server.max_connections.saturating_sub(1));
        let ended_with_clients = end_of(phase.subscribe());
        let of_batches = phase.subscribe();
        let served = served.subscribe();
        let service = Service { served, config, phase, memory, tls, max_streams, observation };
        let (serving, ended) = oneshot::channel::<()>();
        let clients = async {
            let result = server::serve(service, listener, shutdown).await;
            drop(serving);
            result
        };
        let operator = async {
            match self.admin_listener {
                Some(listener) => server::serve(of_operator, listener, async { drop(ended.await) }).await,
                None => Ok(()),
            }
        };
        let ollama_clients = async {
            match self.ollama_listener {
                Some(listener) => server::serve(of_ollama_clients, listener, ended_with_clients).await,
                None => Ok(()),
            }
        };
        let batches = async {
            answer_batches(loaded, of_batches).await;
            Ok(())
        };
        tokio::try_join!(clients, operator, ollama_clients, batches)?;
        Ok(())
    }
}

impl Loading {
    /// Sets the number of loaded bytes of the weights, and their total.
    pub fn report(&self, done_bytes: u64, total_bytes: u64) {
        self.progress.report(done_bytes, total_bytes);
    }

    /// Adds the models, also for open connections.
    ///
    /// # Errors
    /// [`GatewayError::ModelName`].
    pub fn finish(&self, models: Vec<ServedModel>) -> Result<(), GatewayError> {
        self.finish_with(models, None)
    }

    /// Adds the models, beside others that are loaded on demand.
    ///
    /// # Errors
    /// [`GatewayError::ModelName`].
    pub fn finish_with(
        &self,
        models: Vec<ServedModel>,
        on_demand: Option<Arc<OnDemandModels>>,
    ) -> Result<(), GatewayError> {
        check_names(&models)?;
        let taken = models.iter().flat_map(|model| &model.names);
        let mut others = on_demand.iter().flat_map(|models| models.names());
        if let Some(name) = others.find(|name| taken.clone().any(|taken| taken == name)) {
            return Err(GatewayError::ModelName { name });
        }
        let shared = Shared { on_demand: on_demand.clone(), ..self.shared.clone() };
        let app = Arc::new(App::new(self.config.clone(), models, shared, None));
        let _ = self.loaded.set(app.clone());
        if let Some(on_demand) = on_demand {
            tokio::spawn(on_demand.unload_unused(app.clone()));
        }
        if app.policy.ledger.is_some() {
            tokio::spawn(adopt_orphans(Arc::downgrade(&app)));
        }
        self.serve(app);
        Ok(())
    }

    fn serve(&self, app: Arc<App>) {
        self.served.send_replace(served(&app, Audience::Clients));
        self.served_to_operator.send_replace(served(&app, Audience::Operator));
        self.served_to_ollama_clients.send_replace(served(&app, Audience::OllamaClients));
    }

    fn app(&self) -> &Arc<App> {
        let new_app = || Arc::new(App::new(self.config.clone(), Vec::new(), self.shared.clone(), None));
        self.loaded.get_or_init(new_app)
    }

    /// Answers a line of a batch without a server, once models are loaded.
    pub async fn answer_line(&self, request: LineRequest) -> LineAnswer {
        LineAnswers::alone(self.app().clone()).answer(request).await
    }

    /// Name of the anonymous caller in a line's request.
    pub fn nobody() -> serde_json::Value {
        principal_of(&Tenant::anonymous())
    }

    /// Whether a model may answer, now or later, without a restart of the process.
    pub fn is_live(&self) -> bool {
        self.loaded.get().is_none_or(|app| app.is_live())
    }
}

/// Waits until `shutdown` completes or the operator drains the server.
async fn how_it_ends(
    shutdown: impl Future<Output = impl Into<Shutdown> + Send> + Send,
    ending: Arc<Notify>,
) -> Shutdown {
    tokio::select! {
        how = shutdown => how.into(),
        () = ending.notified() => {
            tracing::info!("the operator ends the server: running streams may finish");
            Shutdown::Drain
        }
    }
}

/// Waits until the server of this phase begins to end, and returns the kind of the end.
async fn end_of(mut phase: watch::Receiver<Phase>) -> Shutdown {
    match phase.wait_for(|phase| *phase != Phase::Serving).await.as_deref() {
        Ok(Phase::HandedOver) => Shutdown::HandOver,
        _ => Shutdown::Drain,
    }
}

/// Services for the requests of a listener.
fn served(app: &Arc<App>, audience: Audience) -> Served {
    let (metrics, router) = (app.observed.metrics.http.clone(), routes::router(app.clone(), audience));
    let tidy = match audience {
        Audience::Clients | Audience::OllamaClients => routes::tidied,
        Audience::Operator => std::convert::identity,
    };
    Served { metrics, router, tidy }
}

/// Configuration of the operator's listener: no pages of other origins, no proxy, always a key.
fn operators_config(config: &GatewayConfig) -> GatewayConfig {
    let mut config = config.clone();
    config.access.allowed_origins.clear();
    config.server.root_path.clear();
    config.server.shutdown_timeout_s = ADMIN_SHUTDOWN_S;
    config.access.api_keys.extend(config.access.admin_key.clone());
    config
}

fn invalid((setting, value, expected): (&'static str, String, &'static str)) -> GatewayError {
    GatewayError::Setting { setting, value, expected }
}

fn check_admin(access: &AccessConfig) -> Result<(), GatewayError> {
    let is_valid =
        |key: &Secret| ApiKeys::is_well_formed(key.reveal().as_bytes()) && !access.api_keys.contains(key);
    match &access.admin_key {
        Some(key) if is_valid(key) => Ok(()),
        None if access.admin_listen.is_none() => Ok(()),
        _ => Err(GatewayError::AdminKey),
    }
}

fn check_bind(access: &AccessConfig, is_local: bool, address: &str) -> Result<(), GatewayError> {
    if is_local || access.allow_unauthenticated || access.needs_key() {
        return Ok(());
    }
    Err(GatewayError::Unauthenticated { address: address.to_owned() })
}

pub(crate) fn check_keys(access: &AccessConfig) -> Result<(), GatewayError> {
    match access.api_keys.iter().position(|key| !ApiKeys::is_well_formed(key.reveal().as_bytes())) {
        Some(idx) => Err(GatewayError::InvalidApiKey { number: idx + 1 }),
        None => Ok(()),
    }
}

fn check_names(models: &[ServedModel]) -> Result<(), GatewayError> {
    let mut seen = std::collections::BTreeSet::new();
    for model in models {
        if model.names.is_empty() {
            return Err(GatewayError::ModelName { name: String::new() });
        }
        for name in &model.names {
            if name.is_empty() || !seen.insert(name) {
                return Err(GatewayError::ModelName { name: name.clone() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_need_a_key() {
        let with = |host: &str, keys: &[&str], allowed: bool| {
            let mut config = GatewayConfig::default();
            config.server.host = host.to_owned();
            config.access.api_keys = keys.iter().copied().map(Secret::new).collect();
            config.access.allow_unauthenticated = allowed;
            Gateway::new(config, Vec::new(), ProcessFacts::default()).map(drop)
        };
        for host in ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.9.1"] {
            assert!(with(host, &[], false).is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "::", "[::]", "[", "[127.0.0.1", "192.168.1.5", "example.org", ""] {
            assert!(matches!(with(host, &[], false), Err(GatewayError::Unauthenticated { .. })), "{host}");
            assert!(with(host, &["key"], false).is_ok(), "{host}");
            assert!(with(host, &[], true).is_ok(), "{host}");
        }
        assert!(matches!(
            with("::1", &["ok", "not ok"], false),
            Err(GatewayError::InvalidApiKey { number: 2 })
        ));
    }
}
