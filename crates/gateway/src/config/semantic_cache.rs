//! Settings of the semantic cache: whose questions may get the kept answer to a similar one. Does not know
//! how questions are compared.

use serde::{Deserialize, Serialize};

/// The name that stands for all organisations, clients without a stored key included.
const EVERYONE: &str = "*";

/// Answers for questions that mean the same as one that was answered before.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SemanticCacheConfig {
    /// The served model whose embeddings of questions are compared.
    pub model: String,
    /// Whether such answers are given, or only counted and logged.
    #[serde(default)]
    pub mode: SemanticMode,
    /// For whose requests: names of organisations, or `*` for everyone's.
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
    pub(crate) const MAX_ENTRIES: usize = 1_000_000;

    /// Whether it is for requests of this organisation; `None` for clients without a stored key.
    pub(crate) fn is_for(&self, organisation: Option<&str>) -> bool {
        self.organisations.iter().any(|name| name == EVERYONE || Some(name.as_str()) == organisation)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The setting that is wrong, its value and what it must be.
    pub(crate) fn check(&self, has_response_cache: bool) -> Result<(), (&'static str, String, &'static str)> {
        if !has_response_cache {
            let value = self.model.clone();
            let expected = "used with gateway.response_cache.max_memory_bytes, which keeps the answers";
            return Err(("gateway.semantic_cache.model", value, expected));
        }
        if self.organisations.is_empty() {
            let expected = "names of organisations, or [\"*\"] for everyone";
            return Err(("gateway.semantic_cache.organisations", "[]".to_owned(), expected));
        }
        if !(self.min_similarity > 0.0 && self.min_similarity <= 1.0) {
            let value = self.min_similarity.to_string();
            return Err(("gateway.semantic_cache.min_similarity", value, "above 0 and at most 1"));
        }
        if !(1..=Self::MAX_ENTRIES).contains(&self.max_entries) {
            let value = self.max_entries.to_string();
            return Err(("gateway.semantic_cache.max_entries", value, "from 1 to 1000000"));
        }
        if self.timeout_ms == 0 {
            return Err(("gateway.semantic_cache.timeout_ms", "0".to_owned(), "at least 1"));
        }
        Ok(())
    }
}
