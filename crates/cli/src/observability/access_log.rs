//! The access log: a line of JSON for each request, refused ones included. Never blocks the server: lines
//! that cannot be written are dropped. Contains no text of prompts and answers unless the operator enables
//! bodies.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use throng_gateway::{GenerationReport, RequestObserver, RequestReport};

use super::following_file::FollowingFile;
use crate::process::line_queue::{LineFormat, LineQueue};
use crate::process::output;

/// Queue of lines for a file or standard output.
#[derive(Debug)]
pub struct AccessLog {
    lines: LineQueue,
}

/// One line of the log.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    client: &'a str,
    method: &'a str,
    route: Option<&'a str>,
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    total_ms: f64,
    #[serde(flatten)]
    generation: Option<Generation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
}

/// Figures of the generation.
#[derive(Serialize)]
struct Generation<'a> {
    model: &'a str,
    outcome: &'a str,
    choices: usize,
    prompt_tokens: usize,
    cached_tokens: u64,
    output_tokens: u64,
    queue_ms: Option<f64>,
    ttft_ms: Option<f64>,
}

impl AccessLog {
    /// Opens a log that appends to this file; `-` is standard output.
    ///
    /// # Errors
    /// When the file cannot be opened or no thread can be started.
    pub fn open(path: &Path) -> io::Result<Self> {
        let lines = if path == Path::new("-") {
            LineQueue::start("throng-access", LineFormat::Json, output::unlocked_stdout())
        } else {
            LineQueue::start("throng-access", LineFormat::Json, FollowingFile::open(path)?)
        };
        Ok(Self { lines: lines? })
    }
}

impl RequestObserver for AccessLog {
    fn finished(&self, report: &RequestReport) {
        let line = Line {
            time: Timestamp::try_from(report.arrived).unwrap_or_default().to_string(),
            request_id: &report.request_id,
            trace_id: report.trace_parent.map(|parent| format!("{:032x}", parent.trace_id)),
            client: &report.client,
            method: report.method.as_str(),
            route: report.route.as_deref(),
            status: report.status,
            error: report.error_code,
            tenant: report.tenant.as_deref(),
            key: report.key.as_deref(),
            total_ms: ms(report.total),
            generation: report.generation.as_ref().map(Generation::new),
            body: report.body.as_deref(),
        };
        if let Ok(line) = serde_json::to_string(&line) {
            self.lines.push(&line);
        }
    }
}

impl<'a> Generation<'a> {
    fn new(report: &'a GenerationReport) -> Self {
        Self {
            model: &report.model,
            outcome: report.outcome,
            choices: report.n_choices,
            prompt_tokens: report.prompt_tokens,
            cached_tokens: report.cached_tokens,
            output_tokens: report.output_tokens,
            queue_ms: report.first_step.map(ms),
            ttft_ms: report.first_token.map(|time| ms(report.submitted + time)),
        }
    }
}

/// Converts to milliseconds with a resolution of 1 µs.
fn ms(time: std::time::Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
