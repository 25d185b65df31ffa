//! The internal listener by which gateways reach an engine of this process. It has the public listener's
//! bounds (sizes, times, floods), but no routes for clients. Does not know requests.

mod blocks;
mod generate;
mod routes;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use throng_fleet::worker::{WorkerModel, WorkerService};
use throng_http::memory::MemoryBudget;
use throng_http::{ClientCertificates, Listener, Phase, Shutdown, Tls};
use tokio::sync::watch;

use crate::config::GatewayConfig;
use crate::gateway::{GatewayError, check_keys};
use crate::server::{self, Served, Service};
use throng_auth::ApiKeys;
use throng_metering::metrics::HttpMetrics;

/// Maximum number of concurrent streams of one gateway. Far more than the memory for requests allows, since
/// a gateway's probes of the connection are streams as well.
const MAX_STREAMS: u32 = 1 << 16;

/// Serves a model to gateways.
#[derive(Debug)]
pub struct Worker {
    config: GatewayConfig,
    state: Arc<WorkerState>,
    phase: watch::Sender<Phase>,
    tls: Option<Arc<Tls>>,
}

/// State that the routes share.
#[derive(Debug)]
struct WorkerState {
    service: Arc<WorkerService>,
    tokens: ApiKeys,
    memory: Arc<MemoryBudget>,
    body_timeout_s: u64,
}

impl Worker {
    /// Checks the configuration. The keys of its `access` are the tokens of gateways.
    ///
    /// # Errors
    /// Errors of [`GatewayError`] except [`GatewayError::Io`].
    pub fn new(config: GatewayConfig, model: WorkerModel) -> Result<Self, GatewayError> {
        check_keys(&config.access)?;
        let tls = config.tls.as_ref().map(Tls::load).transpose()?.map(Arc::new);
        let phase = watch::Sender::new(Phase::Serving);
        let state = WorkerState {
            service: Arc::new(WorkerService::new(model, phase.subscribe())),
            tokens: ApiKeys::new(&config.access.api_keys, None),
            memory: MemoryBudget::new(config.memory_limit_bytes()),
            body_timeout_s: config.server.body_timeout_s,
        };
        Ok(Self { config, state: Arc::new(state), phase, tls })
    }

    /// Serves on `listener` until `shutdown` completes; then waits for running requests, for at most
    /// `shutdown_timeout_s`, and aborts the rest.
    ///
    /// # Errors
    /// [`GatewayError::OpenWorker`] if other machines could use it without a token, and
    /// [`GatewayError::Io`].
    pub async fn serve(
        self,
        listener: impl Into<Listener> + Send,
        shutdown: impl Future<Output = impl Into<Shutdown> + Send> + Send,
    ) -> Result<(), GatewayError> {
        let Self { config, state, phase, tls } = self;
        let listener = listener.into();
        let shows_certificates = config.tls.as_ref().is_some_and(|tls| {
            tls.client_ca.is_some() && tls.client_certificates == ClientCertificates::Required
        });
        if !listener.is_local() && config.access.api_keys.is_empty() && !shows_certificates {
            return Err(GatewayError::OpenWorker { address: listener.place() });
        }
        let metrics = HttpMetrics::register(&mut Registry::default());
        let memory = state.memory.clone();
        let served = watch::Sender::new(Served {
            metrics,
            router: routes::router(state),
            tidy: std::convert::identity,
        });
        let served = served.subscribe();
        let observation = Arc::default();
        let service = Service { served, config, phase, memory, tls, max_streams: MAX_STREAMS, observation };
        Ok(server::serve(service, listener, shutdown).await?)
    }
}
