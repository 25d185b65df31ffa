//! Metrics of the process's memory by purpose, read at each scrape. Does not know requests.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use throng_http::memory::{MemoryBudget, Part};

use super::AtScrape;
use crate::HeldBytes;

/// Collector that reads the memory budget and the models at each scrape.
#[derive(Debug)]
pub struct MemoryCollector {
    budget: Arc<MemoryBudget>,
    models: AtScrape<HeldBytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabels {
    part: &'static str,
}

impl MemoryCollector {
    /// Creates a collector for the memory of requests and of these models.
    pub fn new(budget: Arc<MemoryBudget>, models: AtScrape<HeldBytes>) -> Self {
        Self { budget, models }
    }
}

impl Collector for MemoryCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Bytes held: of models as they were loaded, of requests as they were reserved";
        let mut metric = encoder.encode_descriptor("throng_memory_bytes", help, None, MetricType::Gauge)?;
        let of_requests = Part::ALL.map(|part| (part.name(), self.budget.held(part) as u64));
        let models = self.models.list();
        let of_models = [
            ("weights", models.iter().map(|model| model.weights).sum()),
            ("kv", models.iter().map(|model| model.kv).sum()),
        ];
        for (part, n_bytes) in of_models.into_iter().chain(of_requests) {
            metric.encode_family(&PartLabels { part })?.encode_gauge(&(n_bytes as i64))?;
        }
        let help = "Most bytes of bodies, prompts, answers and sockets; past it requests are refused";
        let mut metric =
            encoder.encode_descriptor("throng_memory_limit_bytes", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&(self.budget.limit() as i64))
    }
}
