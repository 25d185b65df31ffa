//! The bytes that a loaded model holds. Does not know models.

/// Memory that a model holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Its weights, as they are computed with: copied or mapped from a file.
    pub weights: u64,
    /// All blocks of its keys and values, used or not.
    pub kv: u64,
}
