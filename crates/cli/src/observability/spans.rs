//! Converts a finished request into spans: one for the exchange and a child for each phase, in the JSON
//! form of OTLP (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>). Does not know where
//! they are sent.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use throng_core::time::Nanos;
use throng_gateway::{RequestPhase, RequestReport, TraceParent};

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER` of `trace.proto`.
const INTERNAL: u32 = 1;
const SERVER: u32 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u32 = 2;

/// The spans of a request; empty if the caller's trace is not sampled.
pub fn spans_of(report: &RequestReport) -> Vec<Value> {
    let fresh = || TraceParent { trace_id: fastrand::u128(1..), span_id: 0, sampled: true };
    let parent = report.trace_parent.unwrap_or_else(fresh);
    if !parent.sampled {
        return Vec::new();
    }
    let (trace, exchange) = (format!("{:032x}", parent.trace_id), span_id());
    let arrived = report.arrived.duration_since(UNIX_EPOCH).unwrap_or_default();
    let route = report.route.as_deref().unwrap_or("unknown");
    let mut span = json!({
        "traceId": trace,
        "spanId": exchange,
        "name": format!("{} {route}", report.method),
        "kind": SERVER,
        "startTimeUnixNano": nanos(arrived),
        "endTimeUnixNano": nanos(arrived + report.total),
        "attributes": attributes(report),
    });
    if parent.span_id != 0 {
        span["parentSpanId"] = format!("{:016x}", parent.span_id).into();
    }
    let has_failed = report.generation.as_ref().is_some_and(|generation| generation.outcome == "error");
    if has_failed || report.status.is_some_and(|status| status >= 500) {
        span["status"] = json!({"code": ERROR});
    }
    let phase = |phase: RequestPhase| {
        json!({
            "traceId": trace,
            "spanId": span_id(),
            "parentSpanId": exchange,
            "name": phase.name,
            "kind": INTERNAL,
            "startTimeUnixNano": nanos(arrived + phase.start),
            "endTimeUnixNano": nanos(arrived + phase.start + phase.length),
            "attributes": phase_attributes(report, phase.name),
        })
    };
    std::iter::once(span).chain(report.phases().into_iter().map(phase)).collect()
}

/// Attributes, with names of the semantic conventions for HTTP and generative models if these define some.
fn attributes(report: &RequestReport) -> Vec<Value> {
    let mut all = vec![
        text("http.request.method", report.method.as_str()),
        text("throng.request_id", &report.request_id),
    ];
    all.extend(report.route.as_deref().map(|route| text("http.route", route)));
    all.extend(report.status.map(|status| number("http.response.status_code", u64::from(status))));
    all.extend(report.error_code.map(|code| text("error.type", code)));
    all.extend(report.tenant.as_deref().map(|tenant| text("throng.tenant", tenant)));
    if let Some(generation) = &report.generation {
        all.extend([
            text("gen_ai.request.model", &generation.model),
            text("throng.outcome", generation.outcome),
            number("gen_ai.usage.input_tokens", generation.prompt_tokens as u64),
            number("throng.usage.cached_tokens", generation.cached_tokens),
            number("gen_ai.usage.output_tokens", generation.output_tokens),
        ]);
    }
    all
}

/// The engine's attributes of a phase, for the first prompt.
fn phase_attributes(report: &RequestReport, phase: &str) -> Vec<Value> {
    let Some(trace) = report.generation.as_ref().and_then(|generation| generation.traces().next()) else {
        return Vec::new();
    };
    let ms = |time: Nanos| time.0 / 1_000_000;
    match phase {
        "queue" => vec![
            number("throng.waited_for.running_step_ms", ms(trace.waited_for_step())),
            number("throng.waited_for.sequences_ms", ms(trace.waits.sequences)),
            number("throng.waited_for.blocks_ms", ms(trace.waits.blocks)),
            number("throng.waited_for.step_tokens_ms", ms(trace.waits.step_tokens)),
        ],
        "prefill" => vec![
            number("throng.steps", u64::from(trace.prefill.n_steps)),
            number("throng.batch_mates.max", u64::from(trace.prefill.max_mates)),
        ],
        "decode" => vec![
            number("throng.steps", u64::from(trace.decode.n_steps)),
            number("throng.batch_mates.max", u64::from(trace.decode.max_mates)),
            number("throng.preemptions", u64::from(trace.n_preemptions)),
            number("throng.pauses", u64::from(trace.n_pauses)),
        ],
        _ => Vec::new(),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// An attribute with a 64-bit integer, which protobuf's JSON writes as a decimal string.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn nanos(since_epoch: Duration) -> String {
    since_epoch.as_nanos().to_string()
}

fn span_id() -> String {
    format!("{:016x}", fastrand::u64(1..))
}
