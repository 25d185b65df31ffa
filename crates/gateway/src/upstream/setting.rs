//! What answering needs of the server. Does not know requests.

use std::sync::Arc;

use throng_http::Phase;
use throng_http::memory::MemoryBudget;
use tokio::sync::watch;

use crate::config::GatewayConfig;
use crate::generation::TokenizationQueue;
use crate::limits::RateLimits;
use throng_metering::ledger::Ledger;
use throng_metering::metrics::Metrics;

/// What answering needs of the server.
#[derive(Debug, Clone)]
pub(crate) struct Setting<'a> {
    /// Configuration.
    pub config: &'a GatewayConfig,
    /// Bounds how many bodies are read at a time.
    pub turns: &'a TokenizationQueue,
    /// Counters.
    pub metrics: &'a Metrics,
    /// What of the keys' limits is in use.
    pub limits: &'a Arc<RateLimits>,
    /// What requests use, where there is a database.
    pub ledger: Option<&'a Arc<Ledger>>,
    /// Bounds what all requests hold.
    pub memory: &'a Arc<MemoryBudget>,
    /// How far the server is on its way to its end.
    pub phase: &'a watch::Sender<Phase>,
}
