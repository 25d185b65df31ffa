//! What is counted, and how it is told to Prometheus. Names and labels are those of vLLM where vLLM has them.

mod engine;
mod http;
mod log;
mod memory;
mod requests;

use std::sync::Arc;

use prometheus_client::registry::Registry;

pub(crate) use self::http::{HttpLabels, HttpMetrics};
pub(crate) use self::log::LogCollector;
pub(crate) use self::memory::MemoryCollector;
pub(crate) use self::requests::{ModelLabels, ModelMetrics};

use self::engine::EngineCollector;
use self::requests::RequestMetrics;
use crate::replica::Replica;

/// The media type of [`Metrics::encode`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: RequestMetrics,
    /// HTTP exchanges.
    pub http: HttpMetrics,
}

impl Metrics {
    /// Counters for these replicas, beside the memory that is held and the lines of the log that were lost.
    pub fn new(
        replicas: Vec<(ModelLabels, Arc<dyn Replica>)>,
        memory: MemoryCollector,
        log: LogCollector,
    ) -> Self {
        let mut registry = Registry::default();
        let http = HttpMetrics::register(&mut registry);
        let requests = RequestMetrics::register(&mut registry);
        registry.register_collector(Box::new(EngineCollector::new(replicas)));
        registry.register_collector(Box::new(memory));
        registry.register_collector(Box::new(log));
        Self { registry, requests, http }
    }

    /// The counters of one model, to be kept.
    pub fn of_model(&self, labels: &ModelLabels) -> ModelMetrics {
        self.requests.of_model(labels)
    }

    /// All of them as OpenMetrics text; `None` should a formatter fail.
    pub fn encode(&self) -> Option<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).ok()?;
        Some(text)
    }
}
