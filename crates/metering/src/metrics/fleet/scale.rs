//! Metrics of the desired number of workers of a gateway's models, computed at each scrape. Keeps nothing.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::metrics::{AtScrape, ModelLabels};

/// Collector that computes the desired numbers at each scrape.
#[derive(Debug)]
pub(in crate::metrics) struct ScaleCollector(pub AtScrape<(ModelLabels, u32)>);

impl Collector for ScaleCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let decided = self.0.list();
        if decided.is_empty() {
            return Ok(());
        }
        let help = "Workers that a model should have, by what waits and runs, the use of the KV cache and predicted waits";
        let mut metric =
            encoder.encode_descriptor("throng_desired_replicas", help, None, MetricType::Gauge)?;
        decided.iter().try_for_each(|(labels, n)| metric.encode_family(labels)?.encode_gauge(&i64::from(*n)))
    }
}
