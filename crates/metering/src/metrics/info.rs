//! Metrics about the program and the served models, as gauges that are always 1. Does not know the program
//! and the models.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::AtScrape;

/// Facts about the gateway's process.
#[derive(Debug, Clone)]
pub struct ProcessFacts {
    /// Commit that the program was built from, or `unknown`.
    pub commit: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Function that returns the number of log lines that could not be written.
    pub n_log_lines_dropped: fn() -> u64,
}

impl Default for ProcessFacts {
    fn default() -> Self {
        Self { commit: "unknown".to_owned(), isa: "unknown".to_owned(), n_log_lines_dropped: || 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    commit: String,
    isa: String,
}

/// Labels of a model and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelInfoLabels {
    /// First name of the model.
    pub model_name: String,
    /// Path or hub id of the loaded model.
    pub root: String,
    /// Context length in tokens.
    pub max_model_len: u32,
}

/// Collector that lists the served models at each scrape.
#[derive(Debug)]
pub(super) struct InfoCollector(AtScrape<ModelInfoLabels>);

impl InfoCollector {
    /// Creates the collector.
    pub fn new(models: AtScrape<ModelInfoLabels>) -> Self {
        Self(models)
    }
}

impl Collector for InfoCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The served models: where from, longest sequence";
        let mut metric = encoder.encode_descriptor("throng_model_info", help, None, MetricType::Gauge)?;
        self.0.list().iter().try_for_each(|model| metric.encode_family(model)?.encode_gauge(&1_i64))
    }
}

/// Registers the process's facts.
pub(super) fn register(registry: &mut Registry, process: &ProcessFacts) {
    let ProcessFacts { commit, isa, .. } = process.clone();
    let builds = Family::<BuildLabels, Gauge>::default();
    builds.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION"), commit, isa }).set(1);
    registry.register("throng_build_info", "The program: version, commit, instruction set", builds);
}
