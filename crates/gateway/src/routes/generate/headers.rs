//! Headers of an answer with the origin of its tokens and its times. Does not know its body.

use std::time::Duration;

use axum::response::Response;
use http::{HeaderName, HeaderValue};

use crate::caller::Caller;
use throng_api::answer::Answer;
use throng_cache::CacheUse;

/// Adds the header with the origin of the tokens, if they may be shared.
pub(super) fn with_cache_use(mut response: Response, cache_use: Option<CacheUse>) -> Response {
    if let Some(cache_use) = cache_use {
        response.headers_mut().insert("x-cache", HeaderValue::from_static(cache_use.name()));
    }
    response
}

/// Header with the times of a request.
pub(super) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Headers with the times of the first choice.
pub(super) fn timing(answer: &Answer, caller: &Caller) -> [(HeaderName, HeaderValue); 2] {
    let timing = answer.choices.first().and_then(|choice| choice.end.as_ref()).map(|end| end.timing);
    let ms = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let queue = ms(timing.and_then(|t| t.first_step));
    let prefill = ms(timing.and_then(|t| t.prefill()));
    let decode = ms(timing.and_then(|t| t.decode()));
    let (stages, total) = (caller.stages.server_timing(), ms(Some(caller.arrived.elapsed())));
    let times = format!(
        "queue;dur={queue:.1}, prefill;dur={prefill:.1}, decode;dur={decode:.1}, {stages}, total;dur={total:.1}"
    );
    [
        (SERVER_TIMING, header_value(times)),
        (HeaderName::from_static("x-queue-ms"), header_value(format!("{queue:.1}"))),
    ]
}

/// Value of a header from letters and digits.
pub(super) fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits and letters are a header value")
}
