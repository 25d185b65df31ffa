//! Metrics of replicas, read at each scrape. Keeps nothing.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_fleet::replica::{Evictions, Load, Replica, StepTokens};

use super::requests::ModelLabels;
use super::{AtScrape, roles};

/// Collector that reads the replicas' statistics at each scrape.
#[derive(Debug)]
pub(super) struct EngineCollector {
    replicas: AtScrape<(ModelLabels, Arc<dyn Replica>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    model_name: String,
    engine: u32,
    block_size: usize,
    num_gpu_blocks: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    model_name: String,
    engine: u32,
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model_name: String,
    engine: u32,
    reason: &'static str,
}

type Snapshot = Vec<(ModelLabels, Load)>;

impl EngineCollector {
    pub fn new(replicas: AtScrape<(ModelLabels, Arc<dyn Replica>)>) -> Self {
        Self { replicas }
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let replicas = self.replicas.list();
        let loads: Snapshot =
            replicas.iter().map(|(labels, replica)| (labels.clone(), replica.load())).collect();
        roles::encode(&mut encoder, &replicas)?;
        encode_gauges(&mut encoder, &loads)?;
        encode_counters(&mut encoder, &loads)?;
        encode_prompt_sources(&mut encoder, &loads)?;
        encode_hits(&mut encoder, &loads)?;
        encode_evictions(&mut encoder, &loads)?;
        encode_cache_config(&mut encoder, &loads)?;
        encode_iteration_tokens(&mut encoder, &loads)
    }
}

fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    gauge(encoder, loads, "vllm:num_requests_running", "Sequences in the batch", |load| {
        load.n_running as i64
    })?;
    gauge(encoder, loads, "vllm:num_requests_waiting", "Sequences that wait", |load| load.n_waiting as i64)?;
    gauge(encoder, loads, "throng_num_requests_paused", "Sequences whose readers are behind", |load| {
        load.n_paused as i64
    })?;
    gauge(encoder, loads, "throng_kv_blocks_cached", "KV blocks that a later prompt can find", |load| {
        load.cached_blocks as i64
    })?;
    gauge(
        encoder,
        loads,
        "throng_kv_blocks_marked",
        "Cached KV blocks that clients asked to keep",
        |load| load.marked_blocks as i64,
    )?;
    gauge(encoder, loads, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", |load| {
        load.used_blocks as f64 / load.total_blocks.max(1) as f64
    })
}

fn encode_counters(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let mut counter = |name, help, value: fn(&Load) -> u64| counter(encoder, loads, name, help, value);
    counter("vllm:prompt_tokens", "Prompt tokens, computed or found in the cache", |load| {
        load.totals.prompt_tokens + load.totals.cache_hit_tokens
    })?;
    counter("vllm:generation_tokens", "Output tokens", |load| load.totals.output_tokens)?;
    counter("vllm:prompt_tokens_cached", "Prompt tokens found in the cache", |load| {
        load.totals.cache_hit_tokens
    })?;
    counter("vllm:prefix_cache_queries", "Prompt tokens looked for in the cache", |load| {
        load.totals.cache_query_tokens
    })?;
    counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache", |load| {
        load.totals.cache_hit_tokens
    })?;
    counter("vllm:num_preemptions", "Sequences that lost their blocks", |load| load.totals.preemptions)?;
    counter("vllm:spec_decode_num_drafts", "How often drafts were computed", |load| load.totals.drafts)?;
    counter("vllm:spec_decode_num_draft_tokens", "Drafts that were computed", |load| {
        load.totals.draft_tokens
    })?;
    counter("vllm:spec_decode_num_accepted_tokens", "Drafts that became output tokens", |load| {
        load.totals.accepted_draft_tokens
    })?;
    counter("throng_pictures_encoded", "Pictures that were encoded", |load| load.totals.encoded_media)?;
    counter("throng_picture_features_reused", "Pictures whose features were known", |load| {
        load.totals.known_media
    })?;
    counter("throng_kv_blocks_restored", "KV blocks brought back from disk", |load| {
        load.totals.restored_blocks
    })?;
    counter("throng_kv_blocks_stored", "KV blocks written to disk", |load| load.totals.stored_blocks)?;
    counter("throng_kv_block_transfers_failed", "KV blocks that were not written or not read", |load| {
        load.totals.failed_block_transfers
    })?;
    counter("throng_kv_blocks_pulled", "KV blocks taken over from other workers", |load| {
        load.totals.pulled_blocks
    })?;
    counter("throng_kv_block_pulls_failed", "KV blocks that did not come from other workers", |load| {
        load.totals.failed_pulls
    })?;
    counter("throng_kv_blocks_served", "KV blocks given to other workers", |load| load.totals.served_blocks)?;
    counter("throng_kv_pulled_bytes", "Bytes of KV blocks taken over from other workers", |load| {
        load.totals.pulled_blocks * load.totals.block_bytes
    })?;
    counter("throng_kv_served_bytes", "Bytes of KV blocks given to other workers", |load| {
        load.totals.served_blocks * load.totals.block_bytes
    })?;
    counter("throng_engine_steps", "Steps that ended", |load| load.totals.steps)?;
    counter("throng_engine_failed_requests", "Requests that ended with a failure", |load| {
        load.totals.failed_requests
    })?;
    counter("throng_engine_restarts", "Executors made after the first", |load| load.totals.executor_restarts)
}

fn gauge<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    loads: &Snapshot,
    name: &str,
    help: &str,
    value: impl Fn(&Load) -> V,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    loads.iter().try_for_each(|(labels, load)| metric.encode_family(labels)?.encode_gauge(&value(load)))
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    loads: &Snapshot,
    name: &str,
    help: &str,
    value: fn(&Load) -> u64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    loads.iter().try_for_each(|(labels, load)| {
        metric.encode_family(labels)?.encode_counter::<ModelLabels, _, f64>(&value(load), None)
    })
}

fn encode_hits(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let (name, help) = ("throng_cache_hit_tokens", "Prompt tokens found in the cache, by where they were");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    loads.iter().try_for_each(|(labels, load)| {
        let (hits, restored) = (load.totals.cache_hit_tokens, load.totals.restored_hit_tokens);
        let sources = [("memory", hits.saturating_sub(restored)), ("disk", restored)];
        sources.into_iter().try_for_each(|(source, n_tokens)| {
            let ModelLabels { model_name, engine } = labels.clone();
            let labels = SourceLabels { model_name, engine, source };
            metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&n_tokens, None)
        })
    })
}

fn encode_evictions(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let (name, help) = ("throng_kv_blocks_evicted", "Cached KV blocks that gave way, by their marks");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    loads.iter().try_for_each(|(labels, load)| {
        let Evictions { unmarked, expired, over_share, marked } = load.totals.evictions;
        let reasons =
            [("unmarked", unmarked), ("expired", expired), ("over_share", over_share), ("marked", marked)];
        reasons.into_iter().try_for_each(|(reason, n_blocks)| {
            let ModelLabels { model_name, engine } = labels.clone();
            let labels = ReasonLabels { model_name, engine, reason };
            metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&n_blocks, None)
        })
    })
}

fn encode_prompt_sources(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let (name, help) =
        ("vllm:prompt_tokens_by_source", "Prompt tokens, by where their keys and values came from");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    loads.iter().try_for_each(|(labels, load)| {
        let totals = load.totals;
        let sources = [("local_compute", totals.prompt_tokens), ("local_cache_hit", totals.cache_hit_tokens)];
        sources.into_iter().try_for_each(|(source, n_tokens)| {
            let ModelLabels { model_name, engine } = labels.clone();
            let labels = SourceLabels { model_name, engine, source };
            metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&n_tokens, None)
        })
    })
}

fn encode_cache_config(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let help = "How the KV cache is divided";
    let mut metric = encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
    loads.iter().try_for_each(|(labels, load)| {
        let ModelLabels { model_name, engine } = labels.clone();
        let num_gpu_blocks = load.total_blocks;
        let labels = CacheLabels { model_name, engine, block_size: BLOCK_TOKENS, num_gpu_blocks };
        metric.encode_family(&labels)?.encode_gauge(&1_i64)
    })
}

fn encode_iteration_tokens(encoder: &mut DescriptorEncoder<'_>, loads: &Snapshot) -> fmt::Result {
    let (name, help) = ("vllm:iteration_tokens_total", "New tokens a step");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    loads.iter().try_for_each(|(labels, load)| {
        let StepTokens { bounds, counts, sum } = &load.step_tokens;
        let bounds = bounds.iter().map(|&bound| bound as f64).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        let n_steps = counts.iter().sum();
        metric.encode_family(labels)?.encode_histogram::<ModelLabels>(*sum as f64, n_steps, &buckets, None)
    })
}
