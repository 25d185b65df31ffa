//! Settings of the cache: how much is kept and where, and whose questions may get the kept answer to a
//! similar one. Does not know how they are set.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The name that stands for all organisations, clients without a stored key included.
const EVERYONE: &str = "*";

/// Answers that are kept for equal requests.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseCacheConfig {
    /// Most bytes of all answers that are kept; 0: none are, and equal requests do not share a generation.
    pub max_memory_bytes: usize,
    /// A folder for more answers, which outlive the process; none without. Answers in memory are needed
    /// beside it.
    pub directory: Option<PathBuf>,
    /// Most bytes of the answers in that folder.
    pub max_disk_bytes: u64,
}

impl Default for ResponseCacheConfig {
    fn default() -> Self {
        Self { max_memory_bytes: 0, directory: None, max_disk_bytes: 1 << 30 }
    }
}

/// Answers for questions that mean the same as one that was answered before.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SemanticCacheConfig {
    /// The served model whose embeddings of questions are compared.
    pub model: String,
    /// Whether such answers are given, or only counted and logged.
    #[serde(default)]
    pub mode: SemanticMode,
    /// Names of the organisations whose requests it is for, or `*` for everyone's.
    pub organisations: Vec<String>,
    /// The least cosine of two questions that mean the same, above 0 and at most 1.
    #[serde(default = "default_similarity")]
    pub min_similarity: f32,
    /// Most questions that are remembered, of all tenants together.
    #[serde(default = "default_entries")]
    pub max_entries: usize,
    /// A question whose embedding takes longer is answered without.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

/// Use of an answer to a similar question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SemanticMode {
    /// Counts and logs it; the request is computed.
    #[default]
    Report,
    /// Answers with it.
    Serve,
}

fn default_similarity() -> f32 {
    0.95
}

fn default_entries() -> usize {
    10_000
}

fn default_timeout_ms() -> u64 {
    250
}

impl SemanticCacheConfig {
    /// Most questions that can be remembered.
    pub const MAX_ENTRIES: usize = 1_000_000;

    /// Whether it is for requests of this organisation; `None` for clients without a stored key.
    pub fn is_for(&self, organisation: Option<&str>) -> bool {
        self.organisations.iter().any(|name| name == EVERYONE || Some(name.as_str()) == organisation)
    }
}
