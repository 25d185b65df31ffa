//! Members that many items have.

use crate::error::ApiError;
use crate::json::Node;
use crate::spec::MAX_NAME_BYTES;

/// Reads a name or an id.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn name_of(value: &Node<'_, '_>) -> Result<String, ApiError> {
    Ok(value.string(MAX_NAME_BYTES)?.into_owned())
}

/// Reads a text of any length.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn text_of(value: &Node<'_, '_>) -> Result<String, ApiError> {
    Ok(value.string(usize::MAX)?.into_owned())
}
