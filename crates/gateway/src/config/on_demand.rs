//! How models come and go while the server runs. Does not know which models.

use serde::{Deserialize, Serialize};

/// Settings of models that are loaded on demand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnDemandConfig {
    /// Treatment of a request for a model that is not in memory.
    pub on_request: OnRequest,
    /// Longest wait of such a request.
    pub wait_ms: u64,
    /// Bytes that these models may hold together; no bound when absent.
    pub max_memory_bytes: Option<u64>,
    /// A model without requests for so long is unloaded; 0: none.
    pub idle_unload_s: u64,
    /// Lets the operator bring models into the cache, until the cache has so many bytes; absent: not at all.
    pub max_pulled_bytes: Option<u64>,
}

/// Treatment of a request for a model that is not in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRequest {
    /// Holds the request while the model is loaded.
    #[default]
    Wait,
    /// Answers with 503, and loads the model.
    Refuse,
    /// Answers with 503; only the operator loads models.
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
