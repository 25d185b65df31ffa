//! Reads the token counts and the finish reason from a complete answer.

use serde::Deserialize;
use serde_json::Value;
use throng_fleet::upstream::{ReportedUsage, estimated_tokens};

use super::active_request::ActiveRequest;

#[derive(Default, Deserialize)]
struct WholeAnswer {
    usage: Option<ReportedUsage>,
    #[serde(default)]
    choices: Vec<WholeChoice>,
}

#[derive(Deserialize)]
struct WholeChoice {
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    message: Value,
    #[serde(default)]
    text: Value,
}

/// Notes a complete answer.
pub(super) fn note_whole(active: &mut ActiveRequest, bytes: &[u8]) {
    let WholeAnswer { usage, choices } = serde_json::from_slice(bytes).unwrap_or_default();
    let at_length = choices.iter().any(|choice| choice.finish_reason == "length");
    let n_tokens = |choice: &WholeChoice| estimated_tokens(&choice.message) + estimated_tokens(&choice.text);
    active.whole(bytes.len(), choices.iter().map(n_tokens).sum(), usage, at_length);
}
