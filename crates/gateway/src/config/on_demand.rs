//! Settings of models that are loaded and unloaded at run time. Does not know which models.

use serde::{Deserialize, Serialize};

/// Settings of models that are loaded on demand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnDemandConfig {
    /// Treatment of a request for a model that is not in memory.
    pub on_request: OnRequest,
    /// Longest wait of such a request, in ms.
    pub wait_ms: u64,
    /// Maximum bytes of these models in memory; no bound if absent.
    pub max_memory_bytes: Option<u64>,
    /// Seconds without requests after which a model is unloaded; 0 for never.
    pub idle_unload_s: u64,
    /// Maximum bytes of the model cache up to which the operator may pull models; absent if pulling is
    /// disabled.
    pub max_pulled_bytes: Option<u64>,
}

/// Treatment of a request for a model that is not in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRequest {
    /// The request waits while the model is loaded.
    #[default]
    Wait,
    /// The answer is 503, and the model is loaded.
    Refuse,
    /// The answer is 503; only the operator loads models.
    Never,
}

impl Default for OnDemandConfig {
    fn default() -> Self {
        Self {
            on_request: OnRequest::Wait,
            wait_ms: 120_000,
            max_memory_bytes: None,
            idle_unload_s: 0,
            max_pulled_bytes: None,
        }
    }
}
