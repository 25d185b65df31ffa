//! Memory of a loaded model. Does not know models.

/// Bytes of memory that a model holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Weights in the form used for computation: copied or mapped from a file.
    pub weights: u64,
    /// Number of all KV blocks, used or not.
    pub kv: u64,
}
