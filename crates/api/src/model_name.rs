//! Names under which models are requested.

use crate::error::{ApiError, echo};
use crate::json::Node;

/// Maximum bytes of a model's name.
pub const MAX_MODEL_NAME_BYTES: usize = 512;

/// Reads a model's name, in any request that has one.
pub fn model_name(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let name = node.string(usize::MAX)?;
    if name.is_empty() || name.len() > MAX_MODEL_NAME_BYTES || name.chars().any(char::is_control) {
        let message = format!("Invalid value: '{}' is not a model name.", echo(&name));
        return Err(ApiError::invalid_value(node.path(), message));
    }
    Ok(name.into_owned())
}
