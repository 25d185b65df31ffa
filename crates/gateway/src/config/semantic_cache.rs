//! Checks of the settings of the semantic cache, by their names in the configuration. Does not know the
//! cache.

use throng_cache::SemanticCacheConfig;

/// Checks the settings of the semantic cache.
///
/// # Errors
/// The invalid setting, its value and the expected value.
pub(crate) fn check(
    config: &SemanticCacheConfig,
    has_response_cache: bool,
) -> Result<(), (&'static str, String, &'static str)> {
    if !has_response_cache {
        let value = config.model.clone();
        let expected = "used with gateway.response_cache.max_memory_bytes, which keeps the answers";
        return Err(("gateway.semantic_cache.model", value, expected));
    }
    if config.organisations.is_empty() {
        let expected = "names of organisations, or [\"*\"] for everyone";
        return Err(("gateway.semantic_cache.organisations", "[]".to_owned(), expected));
    }
    if !(config.min_similarity > 0.0 && config.min_similarity <= 1.0) {
        let value = config.min_similarity.to_string();
        return Err(("gateway.semantic_cache.min_similarity", value, "above 0 and at most 1"));
    }
    if !(1..=SemanticCacheConfig::MAX_ENTRIES).contains(&config.max_entries) {
        let value = config.max_entries.to_string();
        return Err(("gateway.semantic_cache.max_entries", value, "from 1 to 1000000"));
    }
    if config.timeout_ms == 0 {
        return Err(("gateway.semantic_cache.timeout_ms", "0".to_owned(), "at least 1"));
    }
    Ok(())
}
