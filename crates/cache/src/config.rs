//! Settings of the response cache and of the semantic cache. Does not know their sources.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Name of the rule for all organisations, and for clients without a stored key.
const EVERYONE: &str = "*";

/// Settings of the cache of answers to equal requests.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseCacheConfig {
    /// Maximum bytes of all kept answers; 0 disables the cache, and equal requests then share no
    /// generation.
    pub max_memory_bytes: usize,
    /// Folder for more answers, which outlive the process; `None` for no folder. Requires answers in
    /// memory.
    pub directory: Option<PathBuf>,
    /// Maximum bytes of the answers in that folder.
    pub max_disk_bytes: u64,
}

impl Default for ResponseCacheConfig {
    fn default() -> Self {
        Self { max_memory_bytes: 0, directory: None, max_disk_bytes: 1 << 30 }
    }
}

/// Settings of the semantic cache, which answers questions that mean the same as earlier ones.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SemanticCacheConfig {
    /// Served model whose embeddings of questions are compared.
    pub model: String,
    /// Whether answers to similar questions are given, or only counted and logged.
    #[serde(default)]
    pub mode: SemanticMode,
    /// Names of the organisations whose requests use the cache, or `*` for all.
    pub organisations: Vec<String>,
    /// Minimum cosine of two questions that mean the same, above 0 and at most 1.
    #[serde(default = "default_similarity")]
    pub min_similarity: f32,
    /// Maximum number of questions that are kept, of all tenants together.
    #[serde(default = "default_entries")]
    pub max_entries: usize,
    /// Time limit of an embedding in ms; a question that exceeds it is computed.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

/// Use of an answer to a similar question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SemanticMode {
    /// The answer is counted and logged; the request is computed.
    #[default]
    Report,
    /// A similar question gets the kept answer.
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
    /// Maximum of [`SemanticCacheConfig::max_entries`].
    pub const MAX_ENTRIES: usize = 1_000_000;

    /// Whether the cache is for requests of this organisation; `None` for clients without a stored key.
    pub fn is_for(&self, organisation: Option<&str>) -> bool {
        self.organisations.iter().any(|name| name == EVERYONE || Some(name.as_str()) == organisation)
    }
}
