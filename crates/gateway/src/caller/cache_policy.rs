//! Reads from `Cache-Control` whether kept answers may be used. Does not know the cache.

use http::{HeaderMap, header};
use throng_cache::CachePolicy;

/// Reads the directives of `Cache-Control`, RFC 9111, section 5.2.1; others than these two are ignored.
pub(super) fn cache_policy(headers: &HeaderMap) -> CachePolicy {
    let values = headers.get_all(header::CACHE_CONTROL).iter();
    let directives = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut policy = CachePolicy::Use;
    for directive in directives.map(<[u8]>::trim_ascii) {
        if directive.eq_ignore_ascii_case(b"no-store") {
            return CachePolicy::Bypass;
        }
        if directive.eq_ignore_ascii_case(b"no-cache") {
            policy = CachePolicy::Refresh;
        }
    }
    policy
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
            assert_eq!(cache_policy(&headers), policy, "{values:?}");
        }
    }
}
