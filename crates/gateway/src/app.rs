//! What all requests share: the configuration, the models, the keys, the metrics. Refuses to know HTTP.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::auth::ApiKeys;
use crate::config::GatewayConfig;
use crate::generation::Turns;
use crate::memory::MemoryBudget;
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
    /// Bounds how many bodies are parsed and tokenized at a time.
    pub turns: Turns,
    /// Bounds how many large answers are written at a time.
    pub writing: Arc<Semaphore>,
    /// Bounds what all requests hold.
    pub memory: Arc<MemoryBudget>,
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
