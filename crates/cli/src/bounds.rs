//! Ranges of the numbers and forms of the names in an operator's settings, the same for flags and for the
//! file. Does not know the machine and the model, which may allow less.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use throng_core::fleet::routing::is_region_name;
use throng_text::{ReasoningFormat, ToolCallFormat};

/// Compute threads. More threads than cores are slow but allowed; each thread costs memory.
pub const THREADS: RangeInclusive<usize> = 1..=1024;
/// Processes of a divided model, in each direction; and all of them.
pub const RANKS: RangeInclusive<usize> = 1..=throng_comm::shared::MAX_RANKS;
/// Tokens of one sequence; the model may allow less.
pub const SEQUENCE_TOKENS: RangeInclusive<u32> = 1..=u32::MAX;
/// New tokens of a step; each needs activation memory.
pub const STEP_TOKENS: RangeInclusive<u32> = 1..=65_536;
/// Sequences of a step; each needs memory for a row of logits.
pub const STEP_ROWS: RangeInclusive<u32> = 1..=4096;
/// Bytes of the KV cache; the machine may have less.
pub const KV_CACHE_BYTES: RangeInclusive<u64> = 1..=1 << 50;
/// Waiting requests. At least one, since every request waits before it starts.
pub const QUEUED_REQUESTS: RangeInclusive<u32> = 1..=1_000_000;
/// Finished requests kept for `throng explain`, each up to a few kilobytes.
pub const EXPLAINED_REQUESTS: RangeInclusive<usize> = 0..=1_000_000;
/// Prompt tokens of waiting requests.
pub const QUEUED_TOKENS: RangeInclusive<u64> = 1..=1_000_000_000_000;
/// Milliseconds between two tokens of a stream.
pub const INTER_TOKEN_MS: RangeInclusive<u32> = 1..=3_600_000;
/// Drafts of a sequence in a step.
pub const DRAFT_TOKENS: RangeInclusive<u32> = 1..=64;
/// Tokens that must repeat before prompt lookup proposes drafts.
pub const MATCH_TOKENS: RangeInclusive<u32> = 1..=32;
/// Seconds until a step times out.
pub const STEP_TIMEOUT_S: RangeInclusive<u64> = 1..=86_400;
/// Milliseconds that a request may wait for its first step; 0: unlimited.
pub const QUEUE_TIMEOUT_MS: RangeInclusive<u64> = 0..=86_400_000;
/// Seconds that running streams may go on at shutdown; 0 ends them at once.
pub const SHUTDOWN_TIMEOUT_S: RangeInclusive<u64> = 0..=86_400;
/// Timeouts of a connection, in seconds; Linux accepts no keepalive time above 32,767.
pub const CONNECTION_TIMEOUT_S: RangeInclusive<u64> = 1..=28_800;
/// Seconds for which a WebSocket connection may stay open.
pub const WEBSOCKET_S: RangeInclusive<u64> = 1..=604_800;
/// Seconds that `throng handover` waits until the new process is ready.
pub const HANDOVER_S: RangeInclusive<u64> = 1..=86_400;
/// Log-probabilities a request may ask for; -1: as many as the vocabulary.
pub const LOGPROBS: RangeInclusive<i64> = -1..=1_000_000;
/// Connections open at a time.
pub const CONNECTIONS: RangeInclusive<usize> = 1..=1 << 20;
/// Bytes of a request body.
pub const BODY_BYTES: RangeInclusive<usize> = 1 << 10..=1 << 30;
/// Stop strings of a request.
pub const STOP_STRINGS: RangeInclusive<usize> = 0..=1024;
/// Choices of a request.
pub const CHOICES: RangeInclusive<usize> = 1..=4096;
/// Prompts tokenized at a time; each occupies a thread.
pub const TOKENIZATIONS: RangeInclusive<usize> = 1..=256;
/// Tokens of an answer in the terminal.
pub const ANSWER_TOKENS: RangeInclusive<u32> = 1..=u32::MAX;
/// Prompt tokens in a benchmark; the model's context may be shorter.
pub const BENCH_TOKENS: RangeInclusive<u32> = 1..=1 << 24;
/// Running requests of a load test, each with a connection of its own.
pub const LOAD_IN_FLIGHT: RangeInclusive<usize> = 1..=65_536;
/// Replicas of a simulated fleet.
pub const SIMULATED_REPLICAS: RangeInclusive<usize> = 1..=10_000;
/// Bytes of keys and values of a token.
pub const KV_BYTES_PER_TOKEN: RangeInclusive<u64> = 1..=1 << 30;
/// Seconds that a calibration measures.
pub const CALIBRATION_S: RangeInclusive<u64> = 1..=86_400;
/// Lines of a batch answered at a time.
pub const BATCH_LINES: RangeInclusive<usize> = 1..=4096;
/// Batches answered at a time.
pub const BATCHES: RangeInclusive<usize> = 1..=1024;
/// Days until stored data expires; 0: never.
pub const RETENTION_DAYS: RangeInclusive<u64> = 0..=36_500;
/// Stored objects of a tenant.
pub const STATE_OBJECTS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Stored bytes of a tenant.
pub const STATE_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Seconds of a tool's call or of its breaker.
pub const TOOL_S: RangeInclusive<u64> = 1..=86_400;
/// Bytes of a tool's result.
pub const TOOL_RESULT_BYTES: RangeInclusive<usize> = 1..=1 << 30;
/// Calls of tools, turns of the model between them, and failures in a row.
pub const TOOL_CALLS: RangeInclusive<u32> = 1..=1_000_000;
/// Calls of a tool that wait.
pub const TOOL_QUEUE: RangeInclusive<u32> = 0..=1_000_000;
/// Rounds of a comparison.
pub const BENCH_ROUNDS: RangeInclusive<u32> = 1..=1000;
/// Adapters in a benchmark.
pub const BENCH_ADAPTERS: RangeInclusive<u32> = 0..=1024;
/// Sampling temperatures.
pub const TEMPERATURE: RangeInclusive<f32> = 0.0..=2.0;
/// Adapters in memory.
pub const ADAPTERS: RangeInclusive<usize> = 1..=1 << 16;
/// The rank of an adapter.
pub const ADAPTER_RANK: RangeInclusive<usize> = 1..=4096;
/// Memory for adapters, in bytes.
pub const ADAPTER_BYTES: RangeInclusive<u64> = 1..=1 << 50;
/// Maximum bytes of a model's name.
const MAX_NAME_BYTES: usize = 256;

/// Parses a flag's number that must be in `range`.
pub fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| {
        let read = text.trim().parse().ok().filter(|number| range.contains(number));
        read.ok_or_else(|| describe(&range))
    }
}

/// The reason why a number is not in `range`; `None` if it is.
pub fn fault<T: PartialOrd + Display>(number: &T, range: &RangeInclusive<T>) -> Option<String> {
    (!range.contains(number)).then(|| describe(range))
}

fn describe<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("must be a number from {} to {}", range.start(), range.end())
}

/// Parses a probability above 0 and at most 1.
pub fn probability(text: &str) -> Result<f32, String> {
    let read = text.trim().parse().ok().filter(|p| *p > 0.0f32 && *p <= 1.0);
    read.ok_or_else(|| "must be a number above 0 and at most 1".to_owned())
}

/// Parses a number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    let read = text.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
    read.ok_or_else(|| "must be a number above 0".to_owned())
}

/// Parses a number of at least 0.
pub fn not_negative(text: &str) -> Result<f64, String> {
    let read = text.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    read.ok_or_else(|| "must be a number of at least 0".to_owned())
}

/// Parses a name that a model is served under.
pub fn model_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!("must have 1 to {MAX_NAME_BYTES} bytes and no control characters"));
    }
    Ok(text.to_owned())
}

/// Parses the name of a region.
pub fn region(text: &str) -> Result<String, String> {
    if is_region_name(text) {
        return Ok(text.to_owned());
    }
    Err("must have 1 to 64 letters, digits, '-', '_' and '.'".to_owned())
}

/// Checks the name of a tool call format.
pub fn tool_call_parser(text: &str) -> Result<String, String> {
    known_name(text, ToolCallFormat::NAMES.iter().map(|known| known.0))
}

/// Checks the name of a reasoning format.
pub fn reasoning_parser(text: &str) -> Result<String, String> {
    known_name(text, ReasoningFormat::NAMES.iter().map(|known| known.0))
}

fn known_name(text: &str, names: impl Iterator<Item = &'static str>) -> Result<String, String> {
    let names: Vec<&str> = names.chain(["none"]).collect();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_must_be_in_their_range() {
        let read = within(STEP_TIMEOUT_S);
        assert_eq!((read("1"), read("86400")), (Ok(1), Ok(86_400)));
        for bad in ["0", "-5", "86401", "99999999999999999999999", "1.5", "one", ""] {
            assert_eq!(read(bad), Err("must be a number from 1 to 86400".to_owned()), "{bad}");
        }
        for bad in ["NaN", "inf", "-0.1", "2.1", "1e40"] {
            assert!(within(TEMPERATURE)(bad).is_err(), "{bad}");
        }
        assert_eq!(within(LOGPROBS)("-1"), Ok(-1));
        assert!(within(LOGPROBS)("-5").is_err());
        for bad in ["0", "NaN", "1.01", "-1"] {
            assert!(probability(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn model_names_are_short_and_have_no_control_characters() {
        assert_eq!(model_name("org/my model ✓").as_deref(), Ok("org/my model ✓"));
        for bad in ["", "a\nb", "\u{1b}[31m", "a\u{85}", &"x".repeat(257)] {
            assert!(model_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn formats_go_by_known_names() {
        assert_eq!(tool_call_parser("qwen3_coder"), Ok("qwen3_coder".to_owned()));
        assert_eq!(reasoning_parser("none"), Ok("none".to_owned()));
        assert!(tool_call_parser("qwen").is_err_and(|fault| fault.contains("hermes")));
        assert!(reasoning_parser("hermes").is_err_and(|fault| fault.contains("deepseek_r1")));
    }
}
