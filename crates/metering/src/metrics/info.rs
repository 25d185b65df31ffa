//! Which program serves which models, as gauges that are always 1. Does not know what either does.

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
    /// The commit that the program was built from, or `unknown`.
    pub commit: String,
    /// The instruction set that the models are computed with.
    pub isa: String,
    /// Number of lines of the process's log that could not be written so far.
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

/// Model, and the limits of its requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelInfoLabels {
    /// The model's first name.
    pub model_name: String,
    /// The path or hub id that was loaded.
    pub root: String,
    /// Most tokens of prompt and answer together.
    pub max_model_len: u32,
}

/// Lists the served models at each scrape.
#[derive(Debug)]
pub(super) struct InfoCollector(AtScrape<ModelInfoLabels>);

impl InfoCollector {
    /// Creates the collector of these models.
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

/// Makes the facts known to `registry`.
pub(super) fn register(registry: &mut Registry, process: &ProcessFacts) {
    let ProcessFacts { commit, isa, .. } = process.clone();
    let builds = Family::<BuildLabels, Gauge>::default();
    builds.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION"), commit, isa }).set(1);
    registry.register("throng_build_info", "The program: version, commit, instruction set", builds);
}
