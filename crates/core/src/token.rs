//! Token ids. Does not know what tokens mean.

/// An index into a model's vocabulary.
pub type TokenId = u32;
