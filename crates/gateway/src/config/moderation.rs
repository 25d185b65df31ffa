//! What an operator does not want to be sent. Does not know how it is found.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use throng_fleet::Secret;

/// Texts that are refused in prompts and cut out of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModerationConfig {
    /// Rules for texts.
    pub rules: Vec<ModerationRule>,
    /// A server that judges texts.
    pub classifier: Option<ClassifierConfig>,
}

/// A server that judges texts, in the form of OpenAI's moderation endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// Its endpoint, `http://host:port/path` or `https://…`.
    pub url: String,
    /// The certificates (PEM) that its own must come from, for `https://`; the system's when absent.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Bearer token that it is sent.
    #[serde(default)]
    pub token: Option<Secret>,
    /// The model that it is asked for.
    #[serde(default)]
    pub model: Option<String>,
    /// Time within which it must have answered.
    #[serde(default = "one_second")]
    pub timeout_ms: u64,
    /// Treatment of texts about which it has not answered.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether it judges prompts.
    #[serde(default = "yes")]
    pub input: bool,
    /// Whether it judges answers.
    #[serde(default = "yes")]
    pub output: bool,
    /// An answer is held back until so many bytes of it can be judged together.
    #[serde(default = "window")]
    pub output_window_bytes: usize,
}

/// Treatment of texts about which a classifier has not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Refuses them (fail closed).
    #[default]
    Refuse,
    /// Allows them (fail open).
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
    /// Texts, in upper or lower case.
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
    /// The organisations and projects whose keys it holds for; empty: all clients.
    #[serde(default)]
    pub tenants: Vec<String>,
}

fn yes() -> bool {
    true
}
