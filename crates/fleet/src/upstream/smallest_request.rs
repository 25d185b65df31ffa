//! The smallest request of each kind, for probes of engines.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::model::UpstreamReplica;
use super::request::Endpoint;

/// The smallest request of a kind: which kinds an engine answers depends on its model. Newer OpenAI models
/// have another name for the token limit, and refuse a limit of one token.
pub(super) fn smallest_request(kind: usize, model: &str) -> Option<(Endpoint, Value)> {
    let messages = json!([{"role": "user", "content": "."}]);
    Some(match kind {
        0 => (Endpoint::Chat, json!({"model": model, "messages": messages, "max_tokens": 1})),
        1 => (Endpoint::Completions, json!({"model": model, "prompt": ".", "max_tokens": 1})),
        2 => (Endpoint::Chat, json!({"model": model, "messages": messages, "max_completion_tokens": 16})),
        3 => (Endpoint::Embeddings, json!({"model": model, "input": "."})),
        4 => (Endpoint::Rerank, json!({"model": model, "query": ".", "documents": ["."]})),
        5 => (Endpoint::Score, json!({"model": model, "text_1": ".", "text_2": "."})),
        6 => (Endpoint::Classify, json!({"model": model, "input": "."})),
        _ => return None,
    })
}

/// The endpoint of the probe that an engine has answered.
pub(super) fn answered_endpoint(replica: &UpstreamReplica) -> Endpoint {
    let kind = replica.probe.load(Ordering::Relaxed);
    smallest_request(kind, "").map_or(Endpoint::Chat, |(endpoint, _)| endpoint)
}
