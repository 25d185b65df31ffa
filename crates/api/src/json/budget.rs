//! Bound on the values that a request may keep as trees, over all its parameters: a value in a tree takes a
//! hundred times its bytes in the body. Does not know the use of the trees.

use serde_json::Value;
use throng_text::exact_number;

use super::walk::{Extent, syntax};
use super::{MAX_TREE_BYTES, MAX_TREE_DEPTH, Node};
use crate::error::ApiError;

/// Maximum number of values in all trees of a request together.
pub const MAX_TREE_VALUES: usize = 50_000;

/// The remaining part of a request's [`MAX_TREE_VALUES`].
#[derive(Debug, Clone)]
pub struct TreeBudget {
    n_values: usize,
}

impl Default for TreeBudget {
    fn default() -> Self {
        Self { n_values: MAX_TREE_VALUES }
    }
}

impl TreeBudget {
    /// Number of values taken so far.
    pub fn n_taken(&self) -> usize {
        MAX_TREE_VALUES - self.n_values
    }

    /// Takes `n_values` from the budget for the value at `node`.
    ///
    /// # Errors
    /// `schema_too_complex` when fewer are left.
    pub fn take(&mut self, n_values: usize, node: &Node<'_, '_>) -> Result<(), ApiError> {
        let left = self.n_values.checked_sub(n_values);
        self.n_values = left.ok_or_else(|| ApiError::schema_too_complex(node.path()))?;
        Ok(())
    }

    /// Takes the number of values in the tree of `node` from the budget; takes none if it is refused.
    ///
    /// # Errors
    /// `schema_too_complex` for more values than are left, and errors of [`Node::check_complexity`].
    pub fn take_tree(&mut self, node: &Node<'_, '_>) -> Result<(), ApiError> {
        self.n_values -= node.check_complexity(self.n_values)?;
        Ok(())
    }

    /// Takes the number of values in `text`, the string at `node`: that of its tree if it is a JSON object
    /// or array, else 1.
    ///
    /// # Errors
    /// `schema_too_complex` for more values than are left.
    pub fn take_text(&mut self, text: &str, node: &Node<'_, '_>) -> Result<(), ApiError> {
        let is_tree = text.trim_start().starts_with(['{', '[']);
        self.take(if is_tree { Extent::of(text).n_values_at_most } else { 1 }, node)
    }
}

impl<'a> Node<'a, '_> {
    /// Refuses a value that would be too large as a tree: more than `max_values` values, [`MAX_TREE_DEPTH`]
    /// levels or [`MAX_TREE_BYTES`] bytes. Returns the number of values or slightly more.
    ///
    /// # Errors
    /// `schema_too_complex`.
    pub fn check_complexity(&self, max_values: usize) -> Result<usize, ApiError> {
        self.check_complexity_of(self.text(), max_values)
    }

    /// Checks the complexity of JSON in the string at this node; see [`Self::check_complexity`].
    ///
    /// # Errors
    /// `schema_too_complex`.
    pub fn check_complexity_of(&self, json: &str, max_values: usize) -> Result<usize, ApiError> {
        if json.len() <= MAX_TREE_BYTES {
            let extent = Extent::of(json);
            if extent.n_values_at_most <= max_values && extent.depth <= MAX_TREE_DEPTH {
                return Ok(extent.n_values_at_most);
            }
        }
        Err(ApiError::schema_too_complex(self.path()))
    }

    /// The value as a tree. Requires an earlier check by a [`TreeBudget`] or [`Self::check_complexity`].
    ///
    /// # Errors
    /// `invalid_json`, which never occurs in a checked body.
    pub fn tree(&self) -> Result<Value, ApiError> {
        serde_json::from_str(self.text()).map_err(syntax)
    }

    /// The value as a tree like [`Self::tree`], with the digits of every number: see
    /// [`throng_text::exact_number`].
    ///
    /// # Errors
    /// The errors of [`Self::tree`].
    pub fn exact_tree(&self) -> Result<Value, ApiError> {
        exact_number::parse(self.text()).map_err(syntax)
    }
}
