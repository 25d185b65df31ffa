//! The traces of Azure's LLM inference services: a time, prompt tokens and generated tokens a line.

use std::io::BufRead;

use jiff::civil::DateTime;
use throng_core::time::Timestamp;

use super::lines::Lines;
use crate::error::SimError;
use crate::workload::{SimRequest, Span, TimedRequest, Workload, content_id};

/// First line of a trace.
pub(super) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

const PROMPT: u64 = 21;
const OUTPUT: u64 = 22;

/// A trace in the format of Azure's public datasets. Times count from its first request.
#[derive(Debug)]
pub struct AzureTrace {
    lines: Lines,
    first: Option<DateTime>,
    n_requests: u64,
}

impl AzureTrace {
    /// Creates the trace of a reader.
    pub fn new(reader: impl BufRead + Send + 'static) -> Self {
        Self { lines: Lines::new(reader), first: None, n_requests: 0 }
    }

    fn parse(&mut self, line: &str) -> Result<TimedRequest, SimError> {
        let fields: Vec<&str> = line.split(',').collect();
        let [time, prompt, output] = fields[..] else {
            return Err(self.lines.error(format!("it has {} fields, not 3", fields.len())));
        };
        let time: DateTime = time
            .parse()
            .map_err(|error| self.lines.error(format!("TIMESTAMP {time:?} is not a time: {error}")))?;
        let first = *self.first.get_or_insert(time);
        let ns = time.duration_since(first).as_nanos();
        let Ok(ns) = u64::try_from(ns) else {
            return Err(self.lines.error("time runs backwards: it is before the first request"));
        };
        let at = Timestamp::from_ns(ns);
        self.lines.check_order(at)?;
        let number = |name: &str, text: &str| match text.trim().parse::<u32>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(self.lines.error(format!("{name} {text:?} is not a number of at least 1"))),
        };
        let (n_prompt, n_output) = (number("ContextTokens", prompt)?, number("GeneratedTokens", output)?);
        let tag = self.n_requests;
        self.n_requests += 1;
        let prompt = Span { content: content_id(0, PROMPT, tag), n_tokens: n_prompt };
        let output = Span { content: content_id(0, OUTPUT, tag), n_tokens: n_output };
        Ok(TimedRequest { at, request: SimRequest::new([prompt], output), tag })
    }
}

impl Workload for AzureTrace {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        if self.lines.number() == 0 {
            match self.lines.next_line()? {
                None => return Err(SimError::Empty),
                Some(line) if line == HEADER => {}
                Some(line) => return Err(self.lines.error(format!("{line:?} is not the header {HEADER:?}"))),
            }
        }
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
        super::super::read_all(&mut AzureTrace::new(Cursor::new(text.to_owned())))
    }

    #[test]
    fn times_count_from_the_first_request() {
        let text =
            format!("{HEADER}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n");
        let requests = read(&text).expect("valid");
        assert_eq!(requests[0].at, Timestamp::default());
        assert_eq!(requests[1].at.as_ns(), 4_314_579_000);
        assert_eq!(requests[1].request.n_prompt_tokens(), 396);
        assert_eq!(requests[1].request.output.n_tokens, 109);
    }

    #[test]
    fn damaged_lines_are_named() {
        let line = "2023-11-16 18:15:46,374,44";
        for (text, expected) in [
            (String::new(), "no request"),
            (format!("{HEADER}\n"), "no request"),
            ("a,b\n".into(), "line 1: \"a,b\" is not the header"),
            (format!("{HEADER}\n{line}\n2023-11-16 18:15:46,374\n"), "line 3: it has 2 fields"),
            (format!("{HEADER}\n{line}\nyesterday,374,4\n"), "line 3: TIMESTAMP"),
            (format!("{HEADER}\n{line}\n2023-11-16 18:15:45,374,4\n"), "line 3: time runs backwards"),
            (format!("{HEADER}\n2023-11-16 18:15:46,NaN,44\n"), "line 2: ContextTokens \"NaN\""),
            (format!("{HEADER}\n2023-11-16 18:15:46,3,0\n"), "line 2: GeneratedTokens \"0\""),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
