//! How an answer in a chat ends. Does not know what answers.

/// An answer that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its tokens.
    pub n_tokens: usize,
    /// Whether it ended because nothing more fits into the model's context.
    pub context_is_full: bool,
}

/// The conversation has become longer than the model's context.
#[derive(Debug, thiserror::Error)]
#[error("the conversation has become longer than the model's context")]
pub struct ContextFull;
