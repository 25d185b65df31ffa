//! Methods and headers permitted to pages of allowed origins, answered by `tower_http`. Does not check
//! origins, which `guard` does.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, AllowPrivateNetwork, CorsLayer};

use crate::config::AccessConfig;

/// Headers of answers that pages may read.
const EXPOSED: [&str; 12] = [
    "x-cache",
    "x-request-id",
    "x-throng-ignored",
    "server-timing",
    "x-queue-ms",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];
/// Time for which a browser may cache the answer to a preflight.
const MAX_AGE: Duration = Duration::from_secs(600);

/// An invalid setting with its value and the expected value.
pub(crate) type Fault = (&'static str, String, &'static str);

/// Layer for requests from allowed origins.
///
/// # Errors
/// The first invalid name of a method or header.
pub(crate) fn layer(access: &AccessConfig) -> Result<CorsLayer, Fault> {
    let methods = parse("allowed_methods", &access.allowed_methods, "the name of a method", |text| {
        Method::from_bytes(text.as_bytes()).ok()
    })?;
    let headers = parse("allowed_headers", &access.allowed_headers, "the name of a header", |text| {
        HeaderName::from_bytes(text.as_bytes()).ok()
    })?;
    let layer = CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods(methods.map_or_else(AllowMethods::mirror_request, AllowMethods::list))
        .allow_headers(headers.map_or_else(AllowHeaders::mirror_request, AllowHeaders::list))
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .allow_private_network(AllowPrivateNetwork::yes())
        .max_age(MAX_AGE);
    Ok(if access.allow_credentials { layer.allow_credentials(true) } else { layer })
}

/// Checks the form of origins.
///
/// # Errors
/// The first origin that a browser would never send.
pub(crate) fn check_origins(origins: &[String]) -> Result<(), Fault> {
    match origins.iter().find(|origin| !is_origin(origin)) {
        Some(bad) => Err(("allowed_origins", bad.clone(), "scheme://host[:port] without a path, null or *")),
        None => Ok(()),
    }
}

fn is_origin(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_part)
    };
    let is_plain = |rest: &str| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ', '*']);
    let is_value = HeaderValue::from_str(text).is_ok();
    text == "*"
        || text == "null"
        || (is_value
            && text.split_once("://").is_some_and(|(scheme, rest)| is_scheme(scheme) && is_plain(rest)))
}

/// The parsed values; `None` if all are allowed.
fn parse<T>(
    setting: &'static str,
    values: &[String],
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, Fault> {
    if values.is_empty() || values.iter().any(|value| value == "*") {
        return Ok(None);
    }
    let parsed = values.iter().map(|value| parse(value).ok_or_else(|| (setting, value.clone(), expected)));
    parsed.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        let check = |origin: &str| check_origins(&[origin.to_owned()]);
        for good in ["*", "null", "https://a.example", "http://[::1]:8000", "tauri://localhost"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in
            ["", "a.example", "https://", "https://a.example/", "https://*.example", "a b://c", "x://\n"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
