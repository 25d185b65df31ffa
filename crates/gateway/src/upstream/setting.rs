//! Parts of the server that answers of upstream engines need. Does not know requests.

use std::sync::Arc;

use throng_http::Phase;
use throng_http::memory::MemoryBudget;
use tokio::sync::watch;

use crate::config::GatewayConfig;
use crate::generation::TokenizationQueue;
use crate::limits::RateLimits;
use throng_metering::ledger::Ledger;
use throng_metering::metrics::Metrics;

/// Parts of the server that answers of upstream engines need.
#[derive(Debug, Clone)]
pub(crate) struct Setting<'a> {
    /// Settings of the gateway.
    pub config: &'a GatewayConfig,
    /// Queue that bounds how many bodies are parsed at a time.
    pub turns: &'a TokenizationQueue,
    /// Counters of requests to the model.
    pub metrics: &'a Metrics,
    /// Usage of the keys' limits.
    pub limits: &'a Arc<RateLimits>,
    /// Ledger of usage, if there is a database.
    pub ledger: Option<&'a Arc<Ledger>>,
    /// Budget of memory held by all requests.
    pub memory: &'a Arc<MemoryBudget>,
    /// Phase of the server on its way to its end.
    pub phase: &'a watch::Sender<Phase>,
}
