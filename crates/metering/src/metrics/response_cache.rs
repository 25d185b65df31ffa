//! Metrics of the response cache. Does not know answers.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use throng_cache::{CacheUse, LookUp, ResponseCache, SemanticCache};

/// Collector that reads the cache's statistics at each scrape; empty without a cache.
#[derive(Debug)]
pub(super) struct CacheCollector(pub Arc<ResponseCache>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(stats) = self.0.stats() else { return Ok(()) };
        let help = "Prompts whose answers may be shared, by where their tokens came from";
        let name = "throng_response_cache_requests";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (cache_use, n) in CacheUse::ALL.into_iter().zip(stats.requests) {
            let labels = ResultLabels { result: cache_use.name() };
            ConstCounter::new(n).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Answers that are kept";
        let mut metric =
            encoder.encode_descriptor("throng_response_cache_answers", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&(stats.n_answers as i64))?;
        let help = "Bytes of answers that are kept, of those that are being generated, and of those on disk";
        let mut metric =
            encoder.encode_descriptor("throng_response_cache_bytes", help, None, MetricType::Gauge)?;
        let on_disk = usize::try_from(stats.on_disk.1).unwrap_or(usize::MAX);
        for (state, n_bytes) in
            [("kept", stats.n_bytes), ("in_flight", stats.in_flight_bytes), ("on_disk", on_disk)]
        {
            metric.encode_family(&StateLabels { state })?.encode_gauge(&(n_bytes as i64))?;
        }
        match self.0.semantic() {
            Some(semantic) => encode_semantic(semantic, encoder),
            None => Ok(()),
        }
    }
}

fn encode_semantic(semantic: &SemanticCache, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let stats = semantic.stats();
    let help = "Questions for which a similar one was looked for, by what came of it";
    let mut metric =
        encoder.encode_descriptor("throng_semantic_cache_look_ups", help, None, MetricType::Counter)?;
    for (look_up, n) in LookUp::ALL.into_iter().zip(stats.look_ups) {
        let labels = ResultLabels { result: look_up.name() };
        ConstCounter::new(n).encode(metric.encode_family(&labels)?)?;
    }
    let help = "Questions that are remembered";
    let mut metric =
        encoder.encode_descriptor("throng_semantic_cache_questions", help, None, MetricType::Gauge)?;
    metric.encode_gauge(&(stats.n_questions as i64))
}
