//! Time that a model stays in memory after a request: `keep_alive`, and requests that only load or unload.

use std::time::Duration;

use crate::error::ApiError;
use crate::field::{Range, Shape};
use crate::json::{JsonType, MAX_MEMBERS, Node};
use crate::model_name::MAX_MODEL_NAME_BYTES;

/// JSON Schema of `keep_alive`.
pub(super) const KEEP_ALIVE_SHAPE: Shape =
    Shape::AnyOf(&[Shape::Text(MAX_DURATION_BYTES), Shape::Number(Range::closed(f64::MIN, f64::MAX))]);
/// Description of `keep_alive`.
pub(super) const KEEP_ALIVE: &str = "How long a model that comes on demand stays in memory without requests \
    (5m, 1h30m, or seconds; negative: for good; 0: not at all), where the operator unloads unused models.";
/// Maximum bytes of a duration.
const MAX_DURATION_BYTES: usize = 64;
/// Units of a duration in nanoseconds; longer names come before their prefixes.
const UNITS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Time that a model stays in memory without requests; [`Duration::MAX`]: until the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay(pub Duration);

impl Stay {
    /// Reads `keep_alive`.
    ///
    /// # Errors
    /// A 400 if it is neither a number nor a duration in Go's format.
    pub(super) fn read(node: &Node<'_, '_>) -> Result<Self, ApiError> {
        let seconds = match node.json_type() {
            JsonType::String => seconds_of(&node.string(MAX_DURATION_BYTES)?).ok_or_else(|| {
                ApiError::invalid_value(
                    node.path(),
                    "'keep_alive' must be a duration, such as '5m', or seconds.",
                )
            })?,
            _ => node.number()?,
        };
        let is_bounded = seconds >= 0.0;
        Ok(Self(if is_bounded {
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        } else {
            Duration::MAX
        }))
    }
}

/// Parses a duration in Go's format, an optional sign and numbers with units, into seconds.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut ns = 0.0;
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        is_first = false;
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(n_digits);
        let number: f64 = number.parse().ok()?;
        let (name, scale) = UNITS.iter().find(|(name, _)| unit.starts_with(name))?;
        ns += number * scale;
        rest = &unit[name.len()..];
    }
    Some(sign * ns / 1e9)
}

/// The part of a request that determines how long its model stays in memory.
#[derive(Debug, Default)]
pub struct StayRequest {
    /// Name of the model.
    pub model: Option<String>,
    /// Time that the model stays after the request.
    pub stay: Option<Stay>,
    /// Whether the request has no prompt: it only loads or unloads the model.
    pub is_empty: bool,
}

impl StayRequest {
    /// Reads it from a body and ignores all other members; `None` if the body is invalid.
    pub fn peek(body: &[u8]) -> Option<Self> {
        let mut found = Self { is_empty: true, ..Self::default() };
        let members = |key: &str, value: Node<'_, '_>| {
            match key {
                _ if value.is_null() => {}
                "model" => found.model = Some(value.string(MAX_MODEL_NAME_BYTES)?.into_owned()),
                "keep_alive" => found.stay = Some(Stay::read(&value)?),
                "prompt" | "suffix" => found.is_empty &= value.text() == "\"\"",
                "messages" | "images" => found.is_empty &= value.is_empty_container(),
                _ => {}
            }
            Ok(())
        };
        Node::body(body).ok()?.members(MAX_MEMBERS, members).ok()?;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, seconds) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5s", Some(1.5)),
            ("300ms", Some(0.3)),
            ("-1s", Some(-1.0)),
            ("0", Some(0.0)),
            ("10µs", Some(1e-5)),
            ("", None),
            ("5", None),
            ("m", None),
            ("5 m", None),
            ("5m3", None),
            ("soon", None),
        ] {
            let read = seconds_of(text);
            let is_same = match (read, seconds) {
                (Some(read), Some(seconds)) => (read - seconds).abs() < 1e-12,
                (read, seconds) => read.is_none() && seconds.is_none(),
            };
            assert!(is_same, "{text}: {read:?}");
        }
    }

    #[test]
    fn a_request_without_a_prompt_is_about_its_model_alone() {
        let peek = |body: &'static str| StayRequest::peek(body.as_bytes()).expect("JSON");
        let unload = peek(r#"{"model": "m", "keep_alive": 0}"#);
        assert_eq!((unload.model.as_deref(), unload.stay), (Some("m"), Some(Stay(Duration::ZERO))));
        assert!(unload.is_empty);
        assert_eq!(peek(r#"{"keep_alive": -1}"#).stay, Some(Stay(Duration::MAX)));
        for asks in [r#"{"prompt": "x"}"#, r#"{"messages": [{}]}"#] {
            assert!(!peek(asks).is_empty, "{asks}");
        }
        assert!(peek(r#"{"prompt": "", "messages": []}"#).is_empty);
        assert!(StayRequest::peek(br#"{"keep_alive": "soon"}"#).is_none());
        assert!(StayRequest::peek(b"[]").is_none());
    }
}
