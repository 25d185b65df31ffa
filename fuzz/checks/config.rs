//! Any bytes as a `config.json`: refused, or a configuration with layers.

use throng_model::arch::Architecture;

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    if let Ok(architecture) = Architecture::from_config_json(bytes) {
        assert!(!architecture.config.layers.is_empty());
    }
}
