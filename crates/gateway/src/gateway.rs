//! The way in for programs: a configuration and models make a gateway, a socket makes it serve. Refuses to serve
//! where strangers could ask without a key.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_engine::EngineHandle;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::app::App;
use crate::auth::ApiKeys;
use crate::config::{AccessConfig, GatewayConfig};
use crate::generation::Turns;
use crate::memory::MemoryBudget;
use crate::metrics::{LogCollector, MemoryCollector, Metrics, ModelLabels};
use crate::replica::{LocalReplica, Replica};
use crate::router::{Route, Router};
use crate::served_model::{ModelEntry, ServedModel};
use crate::server::{self, Phase};

/// Large answers that are written at a time.
const MAX_WRITTEN_ANSWERS: usize = 2;

/// Serves models over HTTP.
#[derive(Debug)]
pub struct Gateway {
    app: Arc<App>,
}

/// Why a gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Other machines could use it without a key.
    #[error(
        "refusing to listen on {address}, which other machines can reach, without an API key: \
         set one with --api-key, or say --allow-unauthenticated if everyone on that network may use the models"
    )]
    Unauthenticated {
        /// Where it was to listen.
        address: String,
    },
    /// An API key that no client could send.
    #[error("API key number {number} is empty, longer than 512 bytes, or not printable ASCII without spaces")]
    InvalidApiKey {
        /// Which one, counted from 1.
        number: usize,
    },
    /// A model without a name, or a name that two models have.
    #[error("every served model needs a name of its own: {name:?} is empty or taken")]
    ModelName {
        /// The name.
        name: String,
    },
    /// The socket failed.
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
}

impl Gateway {
    /// Checks the configuration and makes the models ready to serve. `n_log_lines_dropped` says for the metrics how many
    /// lines of the process's log could not be written so far.
    ///
    /// # Errors
    /// [`GatewayError`], but for [`GatewayError::Io`].
    pub fn new(
        config: GatewayConfig,
        models: Vec<ServedModel>,
        n_log_lines_dropped: fn() -> u64,
    ) -> Result<Self, GatewayError> {
        let host = config.server.host.as_str();
        let is_local_name = host.eq_ignore_ascii_case("localhost");
        let is_local =
            is_local_name || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        check_bind(&config.access, is_local, host)?;
        check_keys(&config.access)?;
        check_names(&models)?;
        let local = |engine: &EngineHandle| Arc::new(LocalReplica(engine.clone())) as Arc<dyn Replica>;
        let replicas = models.iter().map(|model| model.engines.iter().map(local).collect());
        let replicas: Vec<Vec<Arc<dyn Replica>>> = replicas.collect();
        let memory = MemoryBudget::new(config.memory_limit_bytes());
        let held = MemoryCollector::new(memory.clone(), models.iter().map(|model| model.held).collect());
        let labelled = models.iter().zip(&replicas).flat_map(|(model, replicas)| {
            let labels = |number| ModelLabels::of_engine(model.id(), number);
            (0..).map(labels).zip(replicas.iter().cloned())
        });
        let metrics = Metrics::new(labelled.collect(), held, LogCollector(n_log_lines_dropped));
        let route = |(served, replicas): (ServedModel, Vec<Arc<dyn Replica>>)| {
            let counters = metrics.of_model(&ModelLabels::of_model(served.id()));
            Route::new(Arc::new(ModelEntry::new(served, counters, &config.api)), replicas)
        };
        let router = Router::new(models.into_iter().zip(replicas).map(route).collect());
        let app = App {
            keys: ApiKeys::new(&config.access.api_keys),
            router,
            metrics,
            turns: Turns::new(
                config.api.max_concurrent_tokenizations,
                config.api.max_queued_tokenizations,
                Duration::from_secs(config.api.tokenization_timeout_s),
            ),
            writing: Arc::new(Semaphore::new(MAX_WRITTEN_ANSWERS)),
            memory,
            phase: watch::Sender::new(Phase::Serving),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            config,
        };
        Ok(Self { app: Arc::new(app) })
    }

    #[cfg(test)]
    pub(crate) fn into_app(self) -> Arc<App> {
        self.app
    }

    /// Answers on `listener` until `shutdown` completes; then finishes what runs, for at most
    /// `shutdown_timeout_s`, and cuts the rest.
    ///
    /// # Errors
    /// [`GatewayError::Unauthenticated`] for a listener that does not match the configured host, and
    /// [`GatewayError::Io`].
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), GatewayError> {
        let address: SocketAddr = listener.local_addr()?;
        check_bind(&self.app.config.access, server::is_loopback(address), &address.to_string())?;
        Ok(server::serve(self.app, listener, shutdown).await?)
    }
}

fn check_bind(access: &AccessConfig, is_local: bool, address: &str) -> Result<(), GatewayError> {
    if is_local || access.allow_unauthenticated || !access.api_keys.is_empty() {
        return Ok(());
    }
    Err(GatewayError::Unauthenticated { address: address.to_owned() })
}

fn check_keys(access: &AccessConfig) -> Result<(), GatewayError> {
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
    use crate::config::Secret;

    #[test]
    fn strangers_need_a_key() {
        let with = |host: &str, keys: &[&str], allowed: bool| {
            let mut config = GatewayConfig::default();
            config.server.host = host.to_owned();
            config.access.api_keys = keys.iter().copied().map(Secret::new).collect();
            config.access.allow_unauthenticated = allowed;
            Gateway::new(config, Vec::new(), || 0).map(drop)
        };
        for host in ["127.0.0.1", "localhost", "::1", "127.8.9.1"] {
            assert!(with(host, &[], false).is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "::", "192.168.1.5", "example.org", ""] {
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
