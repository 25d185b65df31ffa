//! The token, below everything that has some. Does not know what tokens mean.

/// An index into a model's vocabulary.
pub type TokenId = u32;
