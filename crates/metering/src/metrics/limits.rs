//! Metrics of sharing limits through Redis. Does not know limits.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::AtScrape;

/// State of the connection to Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RedisState {
    /// Whether Redis answered the last command in time.
    pub is_answering: bool,
    /// Time of the last answer.
    pub last_answer: Option<SystemTime>,
    /// Number of commands without an answer.
    pub n_failures: u64,
}

/// State of the sharing of limits.
#[derive(Debug, Clone, Copy)]
pub struct SharingStats {
    /// State of the connection to Redis.
    pub redis: RedisState,
    /// Number of gateways that share limits, as known to this one.
    pub n_gateways: u64,
    /// Number of scopes for which this gateway holds a lease.
    pub n_leases: usize,
}

/// Collector that reads the state at each scrape; empty if limits are not shared.
#[derive(Debug)]
pub(super) struct SharingCollector(pub AtScrape<SharingStats>);

impl Collector for SharingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(stats) = self.0.list().pop() else { return Ok(()) };
        let since_epoch = stats.redis.last_answer.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let gauges = [
            (
                "throng_redis_connected",
                "Whether Redis answered the last question; if not, limits are a part of their own",
                f64::from(u8::from(stats.redis.is_answering)),
            ),
            (
                "throng_redis_last_answer_timestamp_seconds",
                "When Redis last answered, in seconds since 1970; 0 before its first answer",
                since_epoch.map_or(0.0, |time| time.as_secs_f64()),
            ),
            (
                "throng_limit_gateways",
                "Gateways that share the limits of keys, as far as this one knows",
                stats.n_gateways as f64,
            ),
            (
                "throng_limit_leases",
                "Keys, users, projects and organisations of whose limits this gateway holds a share",
                stats.n_leases as f64,
            ),
        ];
        for (name, help, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let help = "Questions about limits that Redis did not answer in time";
        let metric = encoder.encode_descriptor("throng_redis_failures", help, None, MetricType::Counter)?;
        ConstCounter::new(stats.redis.n_failures).encode(metric)
    }
}
