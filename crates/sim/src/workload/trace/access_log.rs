//! The access log of a server (`--access-log`): requests to models, with their tokens. A prompt shares with
//! those of its tenant as many tokens as were found in the cache.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;

use jiff::Timestamp as Time;
use serde::Deserialize;
use throng_core::time::Timestamp;

use super::lines::Lines;
use crate::error::SimError;
use crate::workload::{SimRequest, Span, TimedRequest, Workload, content_id};

const SHARED: u64 = 51;
const PROMPT: u64 = 52;
const OUTPUT: u64 = 53;

/// Maximum number of requests of a log.
const MAX_REQUESTS: usize = 10_000_000;

/// A line; those without a model are left out.
#[derive(Debug, Deserialize)]
struct Line {
    time: String,
    tenant: Option<String>,
    prompt_tokens: Option<u32>,
    #[serde(default)]
    cached_tokens: u32,
    #[serde(default)]
    output_tokens: u32,
    outcome: Option<String>,
}

/// A log that was read. Its lines are in the order in which requests ended, its requests in that of their
/// arrival.
#[derive(Debug)]
pub struct AccessLogTrace {
    lines: Option<Lines>,
    requests: VecDeque<TimedRequest>,
}

impl AccessLogTrace {
    /// Creates the log of a reader.
    pub fn new(reader: impl BufRead + Send + 'static) -> Self {
        Self { lines: Some(Lines::new(reader)), requests: VecDeque::new() }
    }

    fn read(&mut self, mut lines: Lines) -> Result<(), SimError> {
        let (mut requests, mut tenants) = (Vec::new(), BTreeMap::new());
        while let Some(text) = lines.next_line()? {
            let line: Line = serde_json::from_str(&text).map_err(|error| lines.error(error.to_string()))?;
            let time: Time = line
                .time
                .parse()
                .map_err(|error| lines.error(format!("time {:?} is not a time: {error}", line.time)))?;
            let Some(n_prompt) = line.prompt_tokens.filter(|n| *n > 0) else { continue };
            if requests.len() == MAX_REQUESTS {
                return Err(lines.error(format!("there are more than {MAX_REQUESTS} requests")));
            }
            let n_tenants = tenants.len() as u32;
            let tenant = *tenants.entry(line.tenant.clone().unwrap_or_default()).or_insert(n_tenants);
            requests.push((time, request(&line, n_prompt, tenant, requests.len() as u64)));
        }
        requests.sort_by_key(|(time, _)| *time);
        let Some(first) = requests.first().map(|(time, _)| *time) else { return Err(SimError::Empty) };
        let timed = |(tag, (time, request)): (u64, (Time, SimRequest))| {
            let ns = u64::try_from(time.duration_since(first).as_nanos()).unwrap_or(u64::MAX);
            TimedRequest { at: Timestamp::from_ns(ns), request, tag }
        };
        self.requests = (0..).zip(requests).map(timed).collect();
        Ok(())
    }
}

fn request(line: &Line, n_prompt: u32, tenant: u32, number: u64) -> SimRequest {
    let n_shared = line.cached_tokens.min(n_prompt - 1);
    let shared = Span { content: content_id(u64::from(tenant), SHARED, 0), n_tokens: n_shared };
    let own = Span { content: content_id(number, PROMPT, 0), n_tokens: n_prompt - n_shared };
    let output = Span { content: content_id(number, OUTPUT, 0), n_tokens: line.output_tokens.max(1) };
    let prompt: Vec<Span> = [shared, own].into_iter().filter(|span| span.n_tokens > 0).collect();
    let stops = line.outcome.as_deref() == Some("stop");
    SimRequest { tenant, stops, ..SimRequest::new(prompt, output) }
}

impl Workload for AccessLogTrace {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        if let Some(lines) = self.lines.take() {
            self.read(lines)?;
        }
        Ok(self.requests.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn read(text: &str) -> Result<Vec<TimedRequest>, SimError> {
        super::super::read_all(&mut AccessLogTrace::new(Cursor::new(text.to_owned())))
    }

    #[test]
    fn requests_come_in_the_order_of_their_arrival() {
        let line = |time: &str, tenant: &str, cached: u32| {
            format!(
                r#"{{"time":"2026-01-01T00:00:0{time}Z","tenant":"{tenant}","status":200,"outcome":"stop",
                "prompt_tokens":40,"cached_tokens":{cached},"output_tokens":7}}"#
            )
            .replace('\n', " ")
                + "\n"
        };
        let health = "{\"time\":\"2026-01-01T00:00:00Z\",\"route\":\"/health\",\"status\":200}\n";
        let text = [health, &line("5.5", "a", 32), &line("3", "b", 32), &line("4", "a", 0)].concat();
        let requests = read(&text).expect("valid");
        let times: Vec<u64> = requests.iter().map(|timed| timed.at.as_ns() / 1_000_000).collect();
        assert_eq!(times, [0, 1_000, 2_500]);
        assert!(requests.iter().all(|timed| timed.request.n_prompt_tokens() == 40));
        assert_eq!(requests[2].request.prompt[0].n_tokens, 32);
        assert_ne!(requests[0].request.prompt[0], requests[2].request.prompt[0], "tenants share nothing");
        let error = read(&text.replace("2026-01-01T00:00:03Z", "soon")).expect_err("wrong").to_string();
        assert!(error.starts_with("line 3: time \"soon\""), "{error}");
        assert!(matches!(read(health), Err(SimError::Empty)));
    }
}
