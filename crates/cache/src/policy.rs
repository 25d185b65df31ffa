//! Conditions on which an answer may be shared. Does not know what is in the cache.

use std::sync::Arc;

use throng_text::DetokenizeOptions;

/// Use of kept answers that a client's `Cache-Control` allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// Everything.
    #[default]
    Use,
    /// `no-cache`: the answer is generated for this request, and is kept.
    Refresh,
    /// `no-store`: the answer is generated for this request alone, and is not kept.
    Bypass,
}

/// Conditions, beside the engine's request, on which an answer may be shared.
#[derive(Debug, Clone, Copy)]
pub struct Sharing<'a> {
    /// Use that the client allows.
    pub policy: CachePolicy,
    /// The same request has the same answer: it is greedy, or has a seed of its own.
    pub is_deterministic: bool,
    /// Options for making text of the answer's tokens.
    pub text: Option<&'a DetokenizeOptions>,
    /// Tells the model's build and weights from others beyond this process; without it answers are not kept
    /// on disk.
    pub fingerprint: Option<&'a Arc<str>>,
}
