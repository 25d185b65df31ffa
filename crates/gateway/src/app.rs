//! What all requests share: the configuration, the models, the keys, the metrics. Refuses to know HTTP.

use tokio::sync::{Semaphore, watch};

use crate::auth::ApiKeys;
use crate::config::GatewayConfig;
use crate::metrics::Metrics;
use crate::router::Router;
use crate::server::Phase;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    /// As the operator set it.
    pub config: GatewayConfig,
    /// Who may ask.
    pub keys: ApiKeys,
    /// The served models and who computes them.
    pub router: Router,
    /// What is counted.
    pub metrics: Metrics,
    /// Bounds how many prompts are tokenized at a time.
    pub tokenizing: Semaphore,
    /// How far the server is on its way to its end.
    pub phase: watch::Sender<Phase>,
    /// Seconds since the epoch when the server was made; the `created` of every model.
    pub started_unix_s: u64,
}

impl App {
    /// Whether new requests are refused because the server is ending.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }
}
