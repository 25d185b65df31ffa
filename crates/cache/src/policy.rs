//! Conditions on which an answer may be shared. Does not know the contents of the cache.

use std::sync::Arc;

use throng_text::DetokenizeOptions;

/// Use of kept answers that a client's `Cache-Control` allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// Kept answers are used, and this one is kept.
    #[default]
    Use,
    /// `no-cache`: the answer is generated anew, and is kept.
    Refresh,
    /// `no-store`: the answer is generated for this request alone, and is not kept.
    Bypass,
}

/// Conditions, beside the engine's request, on which an answer may be shared.
#[derive(Debug, Clone, Copy)]
pub struct Sharing<'a> {
    /// Use that the client allows.
    pub policy: CachePolicy,
    /// Whether equal requests have equal answers: sampling is greedy or has the request's own seed.
    pub is_deterministic: bool,
    /// Settings for decoding the answer's tokens to text.
    pub text: Option<&'a DetokenizeOptions>,
    /// Fingerprint of the model's build and weights, valid beyond this process; without it answers are not
    /// kept on disk.
    pub fingerprint: Option<&'a Arc<str>>,
}
