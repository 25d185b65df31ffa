//! `early_stopping` of a beam search.

use throng_core::request::EarlyStopping;

use crate::error::ApiError;
use crate::field::{ReadOptions, Shape};
use crate::json::{JsonType, Node};
use crate::spec::GenerationOptions;

/// JSON Schema of `early_stopping`, as in `transformers`.
pub(super) const EARLY_STOPPING: Shape = Shape::AnyOf(&[Shape::Boolean, Shape::Choice(&["never"])]);

pub(super) fn read_early_stopping(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    r.early_stopping = Some(match node.json_type() {
        JsonType::String => {
            node.one_of(&["never"])?;
            EarlyStopping::WhenUnableToImprove
        }
        _ if node.boolean()? => EarlyStopping::WhenFull,
        _ => EarlyStopping::WhenUnlikelyToImprove,
    });
    Ok(())
}
