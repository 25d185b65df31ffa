//! A finished request in names, sizes and times. Has no text of prompts and answers unless the operator asked
//! for it, and of the request's header fields only its id and its place in a trace.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Method;
use throng_core::fleet::limits::Status;
use throng_core::timeline::request_trace::RequestTrace;
use throng_fleet::replica::TraceSource;

use super::TraceParent;
use super::stages::{Stage, Stages};

/// Report of a request when everything about it is over.
#[derive(Debug)]
pub struct RequestReport {
    /// The `x-request-id` of its response.
    pub request_id: String,
    /// The caller's span, if it sent one.
    pub trace_parent: Option<TraceParent>,
    /// The address that connected; `unix` on a Unix socket.
    pub client: String,
    /// Its method.
    pub method: Method,
    /// The pattern of its route; `None` for an unknown one. Never the path itself, in which secrets may
    /// stand.
    pub route: Option<String>,
    /// The status of the response; `None` if the client had gone before.
    pub status: Option<u16>,
    /// The `code` of the error that it was answered with.
    pub error_code: Option<&'static str>,
    /// Tenant; `None` without a valid key, where keys are needed.
    pub tenant: Option<String>,
    /// The prefix of the stored key.
    pub key: Option<String>,
    /// Time at which its head had arrived.
    pub arrived: SystemTime,
    /// Time from then until everything was over.
    pub total: Duration,
    /// Rest of the key's limits after it was charged.
    pub limits: Option<Status>,
    /// The beginning of the body, where the operator asked for it.
    pub body: Option<String>,
    /// Work of a model for it.
    pub generation: Option<GenerationReport>,
    /// Calls of tools for it.
    pub tools: Vec<ToolReport>,
    /// Times of its stages on the way to the engine.
    pub stages: Stages,
}

/// A call of a tool for a request, in names and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolReport {
    /// The label of the tool's server.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// How long it took.
    pub duration: Duration,
    /// `ok`, or the kind of its failure.
    pub status: &'static str,
}

/// Work of a model for a request. Times count from its submission.
#[derive(Debug)]
pub struct GenerationReport {
    /// The model's name.
    pub model: String,
    /// Number of answers that it asked for.
    pub n_choices: usize,
    /// Tokens of its prompts.
    pub prompt_tokens: usize,
    /// Number of them that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens of all its answers.
    pub output_tokens: u64,
    /// Time from the arrival of its head until it was submitted.
    pub submitted: Duration,
    /// Its first step began.
    pub first_step: Option<Duration>,
    /// Its first token was chosen.
    pub first_token: Option<Duration>,
    /// Its last token was chosen.
    pub last_token: Option<Duration>,
    /// Origin of the tokens, if they may be shared.
    pub cache: Option<&'static str>,
    /// `stop`, `length`, `abort` or `error`.
    pub outcome: &'static str,
    /// The engine's account of its first prompts.
    pub traces: Vec<Arc<dyn TraceSource>>,
}

/// A part of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestPhase {
    /// Its name.
    pub name: &'static str,
    /// Time at which it began, after the arrival of the head.
    pub start: Duration,
    /// Its timing.
    pub length: Duration,
}

impl GenerationReport {
    /// The engine's account of the first prompts, as far as they have ended.
    pub fn traces(&self) -> impl Iterator<Item = &RequestTrace> {
        self.traces.iter().filter_map(|source| source.get())
    }

    /// The ends of its phases, after the arrival of the head.
    fn ends(&self) -> [(&'static str, Option<Duration>); 3] {
        // A client that has gone did not read when things happened; the engine knows.
        let trace = self.traces().next().filter(|_| self.last_token.is_none());
        let ended = |of: fn(&RequestTrace) -> u64| trace.map(|trace| Duration::from_nanos(of(trace)));
        let first_step = self.first_step.or(ended(|trace| trace.queued.0));
        let has_output = trace.is_some_and(|trace| trace.decode.n_steps > 0);
        let end = ended(|trace| trace.end.0);
        let first_token = self.first_token.or(end.filter(|_| !has_output));
        let last_token = self.last_token.or(end.filter(|_| has_output));
        let since_arrival = |time: Option<Duration>| time.map(|time| self.submitted + time);
        [
            ("queue", since_arrival(first_step)),
            ("prefill", since_arrival(first_token)),
            ("decode", since_arrival(last_token)),
        ]
    }
}

impl RequestReport {
    /// Phases of its time, in order; the lengths add up to the whole.
    pub fn phases(&self) -> Vec<RequestPhase> {
        let passed = |stage| self.stages.passed(stage);
        let mut ends = vec![
            ("read", passed(Stage::Body)),
            ("turn", passed(Stage::Turn)),
            ("tokenize", passed(Stage::Tokenized)),
        ];
        if let Some(generation) = &self.generation {
            ends.push(("admit", Some(generation.submitted)));
            ends.extend(generation.ends());
        }
        ends.push(("finish", Some(self.total)));
        let mut start = Duration::ZERO;
        let mut phases = Vec::with_capacity(ends.len());
        for (name, end) in ends {
            let Some(end) = end else { continue };
            let end = end.clamp(start, self.total.max(start));
            phases.push(RequestPhase { name, start, length: end - start });
            start = end;
        }
        phases
    }

    /// Whether it is the tenant's.
    pub fn is_of(&self, tenant: &str) -> bool {
        self.tenant.as_deref() == Some(tenant)
    }

    /// Whether it is worth an explanation: it asked a model for something, and had a right to.
    pub fn is_explained(&self) -> bool {
        self.tenant.is_some() && self.method == Method::POST && self.route.is_some()
    }

    /// Writes the line of a request that reached a model.
    pub fn log(&self) {
        let Some(generation) = &self.generation else { return };
        let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        tracing::info!(
            request = self.request_id,
            path = self.route,
            status = self.status,
            model = generation.model,
            tenant = self.tenant,
            key = self.key,
            client = self.client,
            choices = generation.n_choices,
            prompt_tokens = generation.prompt_tokens,
            cached_tokens = generation.cached_tokens,
            cache = generation.cache,
            output_tokens = generation.output_tokens,
            queue_ms = generation.first_step.map(ms),
            ttft_ms = generation.first_token.map(|time| ms(generation.submitted + time)),
            total_ms = ms(self.total),
            tool_calls = (!self.tools.is_empty()).then_some(self.tools.len()),
            outcome = generation.outcome,
            "request"
        );
    }
}
