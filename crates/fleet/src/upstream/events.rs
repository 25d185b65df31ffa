//! The event stream of an upstream engine, split into events that are passed on unchanged. Reads only what
//! the gateway needs: usage, ends of choices, errors. Does not know where events go.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::usage::{ReportedUsage, estimated_tokens};

/// Maximum bytes of an event.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Size in bytes above which an event may have several tokens, which are then estimated.
const LONG_EVENT_BYTES: usize = 1_024;

/// Splits a byte stream into events.
#[derive(Debug, Default)]
pub struct EventSplitter {
    buffer: BytesMut,
    /// Number of bytes already searched for the end of an event.
    n_searched: usize,
}

/// Error of an event that exceeds [`MAX_EVENT_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLong;

impl EventSplitter {
    /// Adds received bytes.
    ///
    /// # Errors
    /// When an event exceeds [`MAX_EVENT_BYTES`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        if self.buffer.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(EventTooLong);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next complete event with the empty line after it.
    pub fn next_event(&mut self) -> Option<Bytes> {
        let bytes = &self.buffer[..];
        let mut at = self.n_searched;
        while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let end_of_line = at + found + 1;
            let rest = &bytes[end_of_line..];
            let empty_line = if rest.starts_with(b"\r\n") { 2 } else { usize::from(rest.starts_with(b"\n")) };
            if empty_line > 0 {
                self.n_searched = 0;
                return Some(self.buffer.split_to(end_of_line + empty_line).freeze());
            }
            if rest.len() < 2 && !rest.starts_with(b"\n") && rest.iter().all(|byte| *byte == b'\r') {
                // The empty line may still arrive.
                self.n_searched = at + found;
                return None;
            }
            at = end_of_line;
        }
        self.n_searched = at;
        None
    }

    /// Returns the last event of a stream that ended without an empty line, if the event itself is
    /// complete.
    pub fn last(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(&mut self.buffer);
        self.n_searched = 0;
        let data = data_of(&rest)?;
        let is_whole = data == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(data).is_ok();
        is_whole.then(|| [rest.trim_ascii_end(), b"\n\n"].concat().into())
    }

    /// Whether an event has started and not ended.
    #[cfg(test)]
    fn is_inside_event(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Kind of an event, with the content that the gateway needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A comment, or an unknown kind of event.
    Nothing,
    /// A part of an answer.
    Part {
        /// Minimum number of tokens.
        n_tokens: u64,
        /// Number of choices that end with it.
        n_ended: u32,
        /// Whether a choice reached its token limit.
        at_length: bool,
        /// Usage, if the event contains it.
        usage: Option<ReportedUsage>,
        /// Whether the event has no other content.
        is_only_usage: bool,
    },
    /// The stream ends with an error.
    Error,
    /// The stream has ended regularly.
    Done,
}

#[derive(Debug, Deserialize)]
struct Chunk<'a> {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<ReportedUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// `error` for errors of vLLM before 0.10 and of SGLang.
    #[serde(borrow)]
    object: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    finish_reason: Option<String>,
}

/// Classifies an event.
pub fn classify(event: &[u8]) -> EventKind {
    let Some(data) = data_of(event) else { return EventKind::Nothing };
    if data == b"[DONE]" {
        return EventKind::Done;
    }
    // Most events are a few tokens of text; they are not parsed.
    let is_plain = !contains(data, b"\"usage\"")
        && !contains(data, b"\"error\"")
        && !contains(data, b"\"finish_reason\":\"")
        && !contains(data, b"\"finish_reason\": \"");
    let n_tokens = if data.len() > LONG_EVENT_BYTES { tokens_of(data).max(1) } else { 1 };
    let plain = EventKind::Part { n_tokens, n_ended: 0, at_length: false, usage: None, is_only_usage: false };
    if is_plain {
        return plain;
    }
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return plain };
    if chunk.error.is_some_and(|error| error.get() != "null") || chunk.object.as_deref() == Some("error") {
        return EventKind::Error;
    }
    let ended = chunk.choices.iter().filter_map(|choice| choice.finish_reason.as_deref());
    // An event without text has no token.
    let is_empty = chunk.choices.is_empty() && chunk.usage.is_none();
    EventKind::Part {
        n_tokens: if is_empty { 0 } else { n_tokens },
        n_ended: ended.clone().count() as u32,
        at_length: ended.clone().any(|reason| reason == "length"),
        usage: chunk.usage,
        is_only_usage: chunk.choices.is_empty() && chunk.usage.is_some(),
    }
}

#[derive(Debug, Deserialize)]
struct Texts {
    #[serde(default)]
    choices: Vec<ChoiceTexts>,
}

#[derive(Debug, Deserialize)]
struct ChoiceTexts {
    #[serde(default)]
    delta: serde_json::Value,
    #[serde(default)]
    text: serde_json::Value,
}

/// Estimated number of tokens in an event's texts.
fn tokens_of(data: &[u8]) -> u64 {
    let texts = serde_json::from_slice(data).unwrap_or(Texts { choices: Vec::new() });
    let of_choice = |choice: &ChoiceTexts| estimated_tokens(&choice.delta) + estimated_tokens(&choice.text);
    texts.choices.iter().map(of_choice).sum()
}

/// The data of an event with a single data line, the form that all engines use.
pub fn data_of(event: &[u8]) -> Option<&[u8]> {
    let mut lines = event.split(|byte| *byte == b'\n');
    lines.find_map(|line| Some(line.strip_prefix(b"data:")?.trim_ascii()))
}

pub(super) fn contains(text: &[u8], sought: &[u8]) -> bool {
    text.windows(sought.len()).any(|window| window == sought)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_were_cut() {
        let stream = b"data: {\"a\":1}\n\n: ping\r\n\r\ndata: x\r\ndata: y\n\ndata: [DONE]\n\n";
        let expected =
            ["data: {\"a\":1}\n\n", ": ping\r\n\r\n", "data: x\r\ndata: y\n\n", "data: [DONE]\n\n"];
        for size in 1..=stream.len() {
            let (mut splitter, mut events) = (EventSplitter::default(), Vec::new());
            for piece in stream.chunks(size) {
                splitter.push(piece).expect("short");
                while let Some(event) = splitter.next_event() {
                    events.push(String::from_utf8(event.to_vec()).expect("text"));
                }
            }
            assert_eq!(events, expected, "pieces of {size} bytes");
            assert!(!splitter.is_inside_event());
        }
        assert_eq!(EventSplitter::default().push(&vec![b'x'; MAX_EVENT_BYTES + 1]), Err(EventTooLong));
    }

    #[test]
    fn the_last_event_needs_no_empty_line() {
        for (rest, last) in [
            ("data: [DONE]", Some("data: [DONE]\n\n")),
            ("data: [DONE]\r\n", Some("data: [DONE]\n\n")),
            ("data: {\"a\":1}\n", Some("data: {\"a\":1}\n\n")),
            ("event: x\ndata: {}", Some("event: x\ndata: {}\n\n")),
            ("data: {\"a\":", None),
            ("data: [DO", None),
            (": ping", None),
            ("", None),
        ] {
            let mut splitter = EventSplitter::default();
            splitter.push(b"data: 1\n\n").expect("short");
            splitter.push(rest.as_bytes()).expect("short");
            assert!(splitter.next_event().is_some() && splitter.next_event().is_none(), "{rest:?}");
            assert_eq!(splitter.last().as_deref(), last.map(str::as_bytes), "{rest:?}");
            assert!(!splitter.is_inside_event());
        }
    }

    #[test]
    fn only_what_must_be_known_is_read() {
        let part = |n_ended, at_length, usage, is_only_usage| EventKind::Part {
            n_tokens: 1,
            n_ended,
            at_length,
            usage,
            is_only_usage,
        };
        let usage =
            ReportedUsage { prompt_tokens: Some(3), completion_tokens: Some(2), ..ReportedUsage::default() };
        for (event, seen) in [
            (": ping\n\n", EventKind::Nothing),
            ("event: x\n\n", EventKind::Nothing),
            ("data: [DONE]\n\n", EventKind::Done),
            (
                r#"data: {"choices":[{"delta":{"content":"usage"},"finish_reason":null}]}"#,
                part(0, false, None, false),
            ),
            (
                r#"data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}"#,
                part(1, true, None, false),
            ),
            (
                r#"data:{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                part(0, false, Some(usage), true),
            ),
            (r#"data: {"error":{"message":"no"}}"#, EventKind::Error),
            (r#"data: {"object":"error","message":"no","code":500}"#, EventKind::Error),
            (
                r#"data: {"choices":[{"delta":{"content":"\"error\""},"finish_reason":"stop"}],"error":null}"#,
                part(1, false, None, false),
            ),
        ] {
            assert_eq!(classify(event.as_bytes()), seen, "{event}");
        }
    }

    #[test]
    fn an_event_with_much_text_has_more_than_one_token() {
        let text = "word ".repeat(800);
        for choice in [format!(r#"{{"delta":{{"content":"{text}"}}}}"#), format!(r#"{{"text":"{text}"}}"#)] {
            let event = format!("data: {{\"choices\":[{choice}]}}\n\n");
            assert!(matches!(classify(event.as_bytes()), EventKind::Part { n_tokens: 1_000, .. }), "{event}");
        }
    }
}
