//! Token ids. Does not know the meaning of tokens.

/// An index into a model's vocabulary.
pub type TokenId = u32;
