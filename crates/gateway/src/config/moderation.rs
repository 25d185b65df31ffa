//! Settings of moderation. Does not know how matches are found.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use throng_fleet::Secret;

/// Rules and classifier for texts that are refused in prompts and cut from answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModerationConfig {
    /// Rules for texts.
    pub rules: Vec<ModerationRule>,
    /// Server that judges texts.
    pub classifier: Option<ClassifierConfig>,
}

/// A server that judges texts, in the form of OpenAI's moderation endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// URL of the endpoint, `http://host:port/path` or `https://…`.
    pub url: String,
    /// PEM file of certificate authorities for `https://`; the system's by default.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Bearer token for the server.
    #[serde(default)]
    pub token: Option<Secret>,
    /// Value of `model` in requests to the server.
    #[serde(default)]
    pub model: Option<String>,
    /// Longest time for an answer, in ms.
    #[serde(default = "one_second")]
    pub timeout_ms: u64,
    /// Treatment of texts without an answer in time.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether prompts are judged.
    #[serde(default = "yes")]
    pub input: bool,
    /// Whether answers are judged.
    #[serde(default = "yes")]
    pub output: bool,
    /// Number of bytes of an answer that are judged together; the answer is held back until then.
    #[serde(default = "window")]
    pub output_window_bytes: usize,
}

/// Treatment of texts without an answer of the classifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Texts are refused (fail closed).
    #[default]
    Refuse,
    /// Texts are allowed (fail open).
    Allow,
}

fn one_second() -> u64 {
    1_000
}

fn window() -> usize {
    400
}

/// A rule: literals or one regular expression.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModerationRule {
    /// The category that texts with a match belong to.
    pub category: String,
    /// Literal texts, matched in upper and lower case.
    #[serde(default)]
    pub literals: Vec<String>,
    /// A regular expression whose matches have at most 1,024 bytes.
    #[serde(default)]
    pub regex: Option<String>,
    /// Whether prompts with a match are refused.
    #[serde(default = "yes")]
    pub input: bool,
    /// Whether answers end before a match.
    #[serde(default = "yes")]
    pub output: bool,
    /// Organisations and projects to which the rule applies; empty for all clients.
    #[serde(default)]
    pub tenants: Vec<String>,
}

fn yes() -> bool {
    true
}
