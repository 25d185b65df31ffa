//! Metrics and their exposition to Prometheus. Names and labels are those of vLLM where vLLM has them.

mod engine;
mod exposition;
mod fleet;
mod http;
mod info;
mod ledger;
mod limits;
mod log;
mod memory;
mod moderation;
mod process;
mod requests;
mod response_cache;
mod roles;
mod tools;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::registry::Registry;
use throng_fleet::replica::Replica;

pub use self::exposition::Exposition;
pub use self::fleet::{AliasMetrics, EngineStatus};
pub use self::http::{HttpLabels, HttpMetrics};
pub use self::info::ModelInfoLabels;
pub use self::info::ProcessFacts;
pub use self::limits::{RedisState, SharingStats};
pub use self::memory::MemoryCollector;
pub use self::moderation::ModerationCounts;
pub use self::requests::{ModelLabels, ModelMetrics};
pub use self::tools::ToolMetrics;

use self::engine::EngineCollector;
use self::fleet::{EngineStatusCollector, ScaleCollector};
use self::info::InfoCollector;
use self::ledger::LedgerCollector;
use self::limits::SharingCollector;
use self::log::LogCollector;
use self::moderation::ModerationCollector;
use self::process::ProcessCollector;
use self::requests::RequestMetrics;
use self::response_cache::CacheCollector;
use crate::ledger::Ledger;
use throng_cache::ResponseCache;

/// Values read at each scrape.
pub struct AtScrape<T>(Box<dyn Fn() -> Vec<T> + Send + Sync>);

impl<T> AtScrape<T> {
    /// Creates a source of values; `list` reads them.
    pub fn new(list: impl Fn() -> Vec<T> + Send + Sync + 'static) -> Self {
        Self(Box::new(list))
    }

    fn list(&self) -> Vec<T> {
        (self.0)()
    }
}

impl<T> fmt::Debug for AtScrape<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtScrape")
    }
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: RequestMetrics,
    /// Metrics of HTTP exchanges.
    pub http: HttpMetrics,
    /// Metrics of model aliases.
    pub aliases: AliasMetrics,
    /// Metrics of tools.
    pub tools: ToolMetrics,
    /// Metrics of upstream engines' models, by model id.
    upstreams: RwLock<BTreeMap<Box<str>, Arc<ModelMetrics>>>,
}

impl Metrics {
    /// Creates the metrics. The arguments provide models, replicas, upstream engines, held memory, the
    /// process, the ledger and limits, which are read at each scrape.
    pub fn new(
        replicas: AtScrape<(ModelLabels, Arc<dyn Replica>)>,
        (models, engines, scales): (
            AtScrape<ModelInfoLabels>,
            AtScrape<EngineStatus>,
            AtScrape<(ModelLabels, u32)>,
        ),
        memory: MemoryCollector,
        (process, ledger, limits): (&ProcessFacts, Option<Arc<Ledger>>, AtScrape<SharingStats>),
        cache: Arc<ResponseCache>,
        moderation: AtScrape<ModerationCounts>,
    ) -> Self {
        let mut registry = Registry::default();
        let http = HttpMetrics::register(&mut registry);
        let requests = RequestMetrics::register(&mut registry);
        let aliases = AliasMetrics::register(&mut registry);
        let tools = ToolMetrics::register(&mut registry);
        registry.register_collector(Box::new(EngineCollector::new(replicas)));
        registry.register_collector(Box::new(EngineStatusCollector(engines)));
        registry.register_collector(Box::new(ScaleCollector(scales)));
        registry.register_collector(Box::new(memory));
        registry.register_collector(Box::new(CacheCollector(cache)));
        registry.register_collector(Box::new(ModerationCollector(moderation)));
        registry.register_collector(Box::new(LogCollector(process.n_log_lines_dropped)));
        registry.register_collector(Box::new(ProcessCollector));
        info::register(&mut registry, process);
        registry.register_collector(Box::new(InfoCollector::new(models)));
        registry.register_collector(Box::new(SharingCollector(limits)));
        if let Some(ledger) = ledger {
            registry.register_collector(Box::new(LedgerCollector(ledger)));
        }
        Self { registry, requests, http, aliases, tools, upstreams: RwLock::default() }
    }

    /// Creates the metrics of one model, which the caller keeps.
    pub fn of_model(&self, labels: &ModelLabels) -> ModelMetrics {
        self.requests.of_model(labels)
    }

    /// The metrics of an upstream engines' model, kept in this table.
    pub fn of_upstream(&self, model_id: &str) -> Arc<ModelMetrics> {
        let known = self.upstreams.read().unwrap_or_else(PoisonError::into_inner).get(model_id).cloned();
        known.unwrap_or_else(|| {
            let mut upstreams = self.upstreams.write().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(self.of_model(&ModelLabels::of_model(model_id)));
            upstreams.entry(model_id.into()).or_insert_with(new).clone()
        })
    }

    /// All metrics in this format; `None` if a formatter fails.
    pub fn encode(&self, exposition: Exposition) -> Option<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).ok()?;
        Some(match exposition {
            Exposition::OpenMetrics => text,
            Exposition::Text => exposition::text_of(&text),
        })
    }
}
