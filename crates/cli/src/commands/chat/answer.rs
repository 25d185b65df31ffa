//! The end of an answer in a chat. Does not know where answers are generated.

/// A finished answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Number of output tokens.
    pub n_tokens: usize,
    /// Whether the answer ended because the model's context is full.
    pub context_is_full: bool,
}

/// The conversation has become longer than the model's context.
#[derive(Debug, thiserror::Error)]
#[error("the conversation has become longer than the model's context")]
pub struct ContextFull;
