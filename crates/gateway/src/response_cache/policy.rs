//! What a request's headers and parameters say about the use of the cache. Does not know what is in it.

use std::sync::Arc;

use http::{HeaderMap, header};
use throng_text::DetokenizeOptions;

/// Use of kept answers that a client's `Cache-Control` allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CachePolicy {
    /// Everything.
    #[default]
    Use,
    /// `no-cache`: the answer is generated for this request, and is kept.
    Refresh,
    /// `no-store`: the answer is generated for this request alone, and is not kept.
    Bypass,
}

impl CachePolicy {
    /// Reads the directives of RFC 9111, section 5.2.1; others than these two are ignored.
    pub fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::CACHE_CONTROL).iter();
        let directives = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
        let mut policy = Self::Use;
        for directive in directives.map(<[u8]>::trim_ascii) {
            if directive.eq_ignore_ascii_case(b"no-store") {
                return Self::Bypass;
            }
            if directive.eq_ignore_ascii_case(b"no-cache") {
                policy = Self::Refresh;
            }
        }
        policy
    }
}

/// Conditions, beside the engine's request, on which an answer may be shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing<'a> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_among_others() {
        for (values, policy) in [
            (vec![], CachePolicy::Use),
            (vec!["max-age=0, only-if-cached"], CachePolicy::Use),
            (vec!["no-storex"], CachePolicy::Use),
            (vec!["max-age=0,No-Cache"], CachePolicy::Refresh),
            (vec!["no-cache , no-store"], CachePolicy::Bypass),
            (vec!["no-cache", "NO-STORE"], CachePolicy::Bypass),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                headers.append(header::CACHE_CONTROL, value.parse().expect("a header value"));
            }
            assert_eq!(CachePolicy::of(&headers), policy, "{values:?}");
        }
    }
}
