//! Settings of the desired number of replicas. Does not know replicas.

use serde::{Deserialize, Serialize};
use throng_core::fleet::autoscale::AutoscaleConfig;
use throng_core::time::Nanos;

/// Bounds and targets of the number of workers of each model.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AutoscaleSection {
    /// Minimum number of workers; with 0, a model without requests may have none.
    pub min_replicas: u32,
    /// Maximum number of workers.
    pub max_replicas: u32,
    /// Target number of running and waiting sequences of a worker.
    pub target_sequences: u32,
    /// Target share of the KV cache in use.
    pub target_kv_use: f64,
    /// Target wait of a request for its first step, in ms.
    pub target_wait_ms: u64,
    /// Seconds from a change to an increase.
    pub up_cooldown_s: u64,
    /// Seconds from a change to a decrease, and the window whose largest demand counts.
    pub down_cooldown_s: u64,
    /// Seconds without a request after which a model may have no worker.
    pub idle_s: u64,
}

impl Default for AutoscaleSection {
    fn default() -> Self {
        let of = AutoscaleConfig::default();
        let seconds = |time: Nanos| time.0 / 1_000_000_000;
        Self {
            min_replicas: of.min_replicas,
            max_replicas: of.max_replicas,
            target_sequences: of.target_sequences,
            target_kv_use: of.target_kv_use,
            target_wait_ms: of.target_ttft.0 / 1_000_000,
            up_cooldown_s: seconds(of.up_cooldown),
            down_cooldown_s: seconds(of.down_cooldown),
            idle_s: seconds(of.idle),
        }
    }
}

impl AutoscaleSection {
    /// The first invalid setting: its name, its value and the expected value.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String, &'static str)> {
        let checks = [
            (
                "gateway.autoscale.max_replicas",
                self.max_replicas > 0,
                self.max_replicas.to_string(),
                "at least 1",
            ),
            (
                "gateway.autoscale.min_replicas",
                self.min_replicas <= self.max_replicas,
                self.min_replicas.to_string(),
                "at most max_replicas",
            ),
            (
                "gateway.autoscale.target_sequences",
                self.target_sequences > 0,
                self.target_sequences.to_string(),
                "at least 1",
            ),
            (
                "gateway.autoscale.target_kv_use",
                self.target_kv_use > 0.0 && self.target_kv_use <= 1.0,
                self.target_kv_use.to_string(),
                "above 0 and at most 1",
            ),
            (
                "gateway.autoscale.target_wait_ms",
                self.target_wait_ms > 0,
                self.target_wait_ms.to_string(),
                "at least 1",
            ),
        ];
        let fault = checks.into_iter().find(|(_, is_right, ..)| !is_right);
        fault.map_or(Ok(()), |(name, _, value, expected)| Err((name, value, expected)))
    }

    /// The settings for `core`.
    pub(crate) fn of_core(&self) -> AutoscaleConfig {
        let seconds = |s: u64| Nanos::from_ms(s.saturating_mul(1000));
        AutoscaleConfig {
            min_replicas: self.min_replicas,
            max_replicas: self.max_replicas,
            target_sequences: self.target_sequences,
            target_kv_use: self.target_kv_use,
            target_ttft: Nanos::from_ms(self.target_wait_ms),
            up_cooldown: seconds(self.up_cooldown_s),
            down_cooldown: seconds(self.down_cooldown_s),
            idle: seconds(self.idle_s),
        }
    }
}
