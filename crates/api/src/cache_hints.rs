//! Hints of clients about the cache of prompts, as OpenAI's and Anthropic's APIs have them. Does not know
//! their effect.

use crate::error::ApiError;
use crate::json::Node;
use crate::spec::KEEP_SHORT_S;

/// Maximum bytes of a `prompt_cache_key`.
pub(crate) const MAX_KEY_BYTES: usize = 512;

/// Values of `prompt_cache_retention`. Older clients write the first one with a hyphen.
pub(crate) const RETENTIONS: &[&str] = &["in_memory", "24h", "in-memory"];

const KEEP_HOUR_S: u32 = 3_600;
const KEEP_DAY_S: u32 = 24 * 3_600;

/// Reads a `prompt_cache_key`; an empty one is none.
pub(crate) fn read_cache_key(node: &Node<'_, '_>) -> Result<Option<String>, ApiError> {
    Ok(Some(node.string(MAX_KEY_BYTES)?.into_owned()).filter(|key| !key.is_empty()))
}

/// Reads a `prompt_cache_retention`, as a time in seconds.
pub(crate) fn read_retention(node: &Node<'_, '_>) -> Result<u32, ApiError> {
    Ok(if RETENTIONS[node.one_of(RETENTIONS)?] == "24h" { KEEP_DAY_S } else { KEEP_SHORT_S })
}

/// Name of the `prompt_cache_retention` of this time.
pub(crate) fn retention_name(keep_s: u32) -> &'static str {
    if keep_s > KEEP_SHORT_S { "24h" } else { "in_memory" }
}

/// Reads Anthropic's `cache_control`, as a time in seconds; `None` for null.
pub(crate) fn read_cache_control(node: &Node<'_, '_>) -> Result<Option<u32>, ApiError> {
    if node.is_null() {
        return Ok(None);
    }
    let (mut has_type, mut keep_s) = (false, KEEP_SHORT_S);
    node.known_members(&["type", "ttl"], |key, value| {
        match key {
            "type" => has_type = value.one_of(&["ephemeral"])? == 0,
            _ if value.is_null() => {}
            _ => keep_s = [KEEP_SHORT_S, KEEP_HOUR_S][value.one_of(&["5m", "1h"])?],
        }
        Ok(())
    })?;
    if has_type { Ok(Some(keep_s)) } else { Err(ApiError::missing_required_parameter(node.path_of("type"))) }
}
