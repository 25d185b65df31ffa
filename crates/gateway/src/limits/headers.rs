//! Remaining limits as headers with OpenAI's names and forms. Does not know where limits come from.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use throng_core::fleet::limits::{Remaining, Status};
use throng_core::time::Nanos;

/// Header names of the limit, of the remaining part, and of the time until all of it is available.
const REQUESTS: [&str; 3] =
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
const TOKENS: [&str; 3] =
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];

/// Adds the headers of the limits that are set.
pub(crate) fn insert_headers(status: &Status, headers: &mut HeaderMap) {
    for (names, left) in [(REQUESTS, status.requests), (TOKENS, status.tokens)] {
        let Some(Remaining { limit, remaining, reset }) = left else { continue };
        let values = [limit.to_string(), remaining.to_string(), span(reset)];
        for (name, value) in names.into_iter().zip(values) {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// A duration in Go's notation, in milliseconds and rounded up: `0s`, `250ms`, `1.5s`, `1m0.25s`.
fn span(time: Nanos) -> String {
    let time = Duration::from_millis(time.0.div_ceil(1_000_000));
    let (minutes, rest) = (time.as_secs() / 60, Duration::from_secs(time.as_secs() % 60));
    let seconds = (rest + Duration::from_millis(u64::from(time.subsec_millis()))).as_secs_f64();
    match (minutes, time.as_secs(), time.subsec_millis()) {
        (0, 0, ms) if ms > 0 => format!("{ms}ms"),
        (0, ..) => format!("{seconds}s"),
        _ => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_go_does() {
        for (ns, text) in [
            (0, "0s"),
            (1, "1ms"),
            (250_000_000, "250ms"),
            (1_000_000_000, "1s"),
            (59_750_000_000, "59.75s"),
            (59_999_999_999, "1m0s"),
            (60_250_000_000, "1m0.25s"),
            (360_000_000_000, "6m0s"),
            (61_001_000_000, "1m1.001s"),
        ] {
            assert_eq!(span(Nanos(ns)), text);
        }
    }
}
