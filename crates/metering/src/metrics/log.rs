//! Metric of lost log lines. Does not write the log.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Collector that reads the number of lost lines at each scrape.
#[derive(Debug)]
pub(super) struct LogCollector(pub fn() -> u64);

impl Collector for LogCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Lines of the log that could not be written to standard error";
        let metric =
            encoder.encode_descriptor("throng_log_lines_dropped", help, None, MetricType::Counter)?;
        ConstCounter::new((self.0)()).encode(metric)
    }
}
