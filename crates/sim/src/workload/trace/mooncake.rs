//! The traces of Mooncake: arrival, lengths, and the names of prompt blocks of 512 tokens, by which prompts
//! share prefixes.

use std::io::BufRead;

use serde::Deserialize;
use throng_core::time::{Nanos, Timestamp};

use super::lines::Lines;
use crate::error::SimError;
use crate::workload::{SimRequest, Span, TimedRequest, Workload, content_id};

/// Number of tokens of a named block.
const BLOCK: u32 = 512;

const NAMED: u64 = 31;
const OUTPUT: u64 = 32;

/// A line of the trace.
#[derive(Debug, Deserialize)]
struct Line {
    /// Milliseconds since its beginning.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// A trace in the format of Mooncake's release.
#[derive(Debug)]
pub struct MooncakeTrace {
    lines: Lines,
    n_requests: u64,
}

impl MooncakeTrace {
    /// The trace behind a reader.
    pub fn new(reader: impl BufRead + Send + 'static) -> Self {
        Self { lines: Lines::new(reader), n_requests: 0 }
    }

    fn parse(&mut self, line: &str) -> Result<TimedRequest, SimError> {
        let line: Line = serde_json::from_str(line).map_err(|error| self.lines.error(error.to_string()))?;
        let Line { timestamp, input_length, output_length, hash_ids } = line;
        if !(timestamp.is_finite() && timestamp >= 0.0) {
            return Err(self.lines.error(format!("timestamp {timestamp} is not a number of at least 0")));
        }
        if input_length == 0 || output_length == 0 {
            return Err(self.lines.error("input_length and output_length must be at least 1"));
        }
        if hash_ids.len() as u64 != u64::from(input_length.div_ceil(BLOCK)) {
            let n = hash_ids.len();
            return Err(self.lines.error(format!("{n} hash_ids do not name {input_length} tokens")));
        }
        let at = Timestamp::default() + Nanos((timestamp * 1e6) as u64);
        self.lines.check_order(at)?;
        let mut rest = input_length;
        let spans = hash_ids.iter().map(|id| {
            let n_tokens = rest.min(BLOCK);
            rest -= n_tokens;
            Span { content: content_id(0, NAMED, *id), n_tokens }
        });
        let prompt: Vec<Span> = spans.collect();
        let tag = self.n_requests;
        self.n_requests += 1;
        let output = Span { content: content_id(0, OUTPUT, tag), n_tokens: output_length };
        Ok(TimedRequest { at, request: SimRequest::new(prompt, output), tag })
    }
}

impl Workload for MooncakeTrace {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        let Some(line) = self.lines.next_line()? else {
            return if self.n_requests == 0 { Err(SimError::Empty) } else { Ok(None) };
        };
        self.parse(&line).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn read(text: &str) -> Result<Vec<TimedRequest>, SimError> {
        super::super::read_all(&mut MooncakeTrace::new(Cursor::new(text.to_owned())))
    }

    const LINE: &str = r#"{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}"#;

    #[test]
    fn equal_names_are_equal_tokens() {
        let other = LINE.replace('7', "8").replace("500", "1500");
        let requests = read(&format!("{LINE}\n\n{other}\n")).expect("valid");
        let [a, b] = [0, 1].map(|i| requests[i].request.prompt_tokens(1000));
        assert!(a.len() == 600 && a[..512] == b[..512] && a[512..] != b[512..]);
        assert_eq!(requests[1].at.as_ns(), 1_500_000_000);
    }

    #[test]
    fn damaged_lines_are_named() {
        for (text, expected) in [
            (String::new(), "no request"),
            ("{".into(), "line 1: EOF"),
            (format!("{LINE}\n{}", LINE.replace("500", "400")), "line 2: time runs backwards"),
            (LINE.replace(", 7", ""), "line 1: 1 hash_ids do not name 600 tokens"),
            (LINE.replace("600", "0"), "line 1: input_length"),
            (LINE.replace("500", "-1"), "line 1: timestamp -1"),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
