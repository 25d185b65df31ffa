//! What engines say of themselves, read when someone asks. Refuses to keep anything.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use throng_core::batch::BLOCK_TOKENS;
use throng_engine::{EngineStats, IterationTokens};

use super::requests::ModelLabels;
use crate::replica::Replica;

/// Asks replicas at each scrape.
#[derive(Debug)]
pub(super) struct EngineCollector {
    replicas: Vec<(ModelLabels, Arc<dyn Replica>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    model_name: String,
    engine: u32,
    block_size: usize,
    num_gpu_blocks: usize,
}

type Snapshot = Vec<(ModelLabels, EngineStats)>;

impl EngineCollector {
    pub fn new(replicas: Vec<(ModelLabels, Arc<dyn Replica>)>) -> Self {
        Self { replicas }
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats: Snapshot =
            self.replicas.iter().map(|(labels, replica)| (labels.clone(), replica.stats())).collect();
        encode_gauges(&mut encoder, &stats)?;
        encode_counters(&mut encoder, &stats)?;
        encode_cache_config(&mut encoder, &stats)?;
        encode_iteration_tokens(&mut encoder, &stats)
    }
}

fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, stats: &Snapshot) -> fmt::Result {
    gauge(encoder, stats, "vllm:num_requests_running", "Sequences in the batch", |s| {
        s.scheduler.running as i64
    })?;
    gauge(encoder, stats, "vllm:num_requests_waiting", "Sequences that wait", |s| {
        s.scheduler.waiting.max(s.scheduler.queued_requests) as i64
    })?;
    gauge(encoder, stats, "throng_num_requests_paused", "Sequences whose readers are behind", |s| {
        s.scheduler.paused as i64
    })?;
    gauge(encoder, stats, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", |s| {
        s.scheduler.used_blocks as f64 / s.scheduler.total_blocks.max(1) as f64
    })
}

fn encode_counters(encoder: &mut DescriptorEncoder<'_>, stats: &Snapshot) -> fmt::Result {
    let mut counter = |name, help, value: fn(&EngineStats) -> u64| counter(encoder, stats, name, help, value);
    counter("vllm:prompt_tokens", "Prompt tokens computed", |s| s.scheduler.counters.prompt_tokens)?;
    counter("vllm:generation_tokens", "Output tokens", |s| s.scheduler.counters.output_tokens)?;
    counter("vllm:prompt_tokens_cached", "Prompt tokens found in the cache", |s| {
        s.scheduler.counters.cache_hit_tokens
    })?;
    counter("vllm:prefix_cache_queries", "Prompt tokens looked for in the cache", |s| {
        s.scheduler.counters.cache_query_tokens
    })?;
    counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache", |s| {
        s.scheduler.counters.cache_hit_tokens
    })?;
    counter("vllm:num_preemptions", "Sequences that lost their blocks", |s| {
        s.scheduler.counters.preemptions
    })?;
    counter("throng_engine_steps", "Steps that ended", |s| s.scheduler.counters.steps)?;
    counter("throng_engine_failed_requests", "Requests that ended with a failure", |s| s.failures.requests)?;
    counter("throng_engine_restarts", "Executors made after the first", |s| s.executor_restarts)
}

fn gauge<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    stats: &Snapshot,
    name: &str,
    help: &str,
    value: impl Fn(&EngineStats) -> V,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    stats.iter().try_for_each(|(labels, stats)| metric.encode_family(labels)?.encode_gauge(&value(stats)))
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    stats: &Snapshot,
    name: &str,
    help: &str,
    value: fn(&EngineStats) -> u64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    stats.iter().try_for_each(|(labels, stats)| {
        metric.encode_family(labels)?.encode_counter::<ModelLabels, _, f64>(&value(stats), None)
    })
}

fn encode_cache_config(encoder: &mut DescriptorEncoder<'_>, stats: &Snapshot) -> fmt::Result {
    let help = "How the KV cache is divided";
    let mut metric = encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
    stats.iter().try_for_each(|(labels, stats)| {
        let ModelLabels { model_name, engine } = labels.clone();
        let num_gpu_blocks = stats.scheduler.total_blocks;
        let labels = CacheLabels { model_name, engine, block_size: BLOCK_TOKENS, num_gpu_blocks };
        metric.encode_family(&labels)?.encode_gauge(&1_i64)
    })
}

fn encode_iteration_tokens(encoder: &mut DescriptorEncoder<'_>, stats: &Snapshot) -> fmt::Result {
    let (name, help) = ("vllm:iteration_tokens_total", "New tokens a step");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    stats.iter().try_for_each(|(labels, stats)| {
        let IterationTokens { counts, sum } = &stats.iteration_tokens;
        let bounds = IterationTokens::BOUNDS.iter().map(|&bound| bound as f64).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        let n_steps = counts.iter().sum();
        metric.encode_family(labels)?.encode_histogram::<ModelLabels>(*sum as f64, n_steps, &buckets, None)
    })
}
