//! Report of a finished request: names, sizes and times. Contains no text of prompts and answers unless the
//! operator enables it, and of the headers only the request's id and trace context.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Method;
use throng_core::fleet::limits::Status;
use throng_core::timeline::request_trace::RequestTrace;
use throng_fleet::replica::{PulledPrefix, SplitReport, TraceSource};

use super::TraceParent;
use super::stages::{Stage, Stages};

/// Report of a finished request.
#[derive(Debug)]
pub struct RequestReport {
    /// Value of `x-request-id` in the response.
    pub request_id: String,
    /// Span of the caller, if it sent one.
    pub trace_parent: Option<TraceParent>,
    /// Address that connected; `unix` on a Unix domain socket.
    pub client: String,
    /// HTTP method of the request.
    pub method: Method,
    /// Pattern of the route; `None` if it is unknown. Never the path itself, which may contain secrets.
    pub route: Option<String>,
    /// Status of the response; `None` if the client had disconnected before.
    pub status: Option<u16>,
    /// Value of `code` in an error response.
    pub error_code: Option<&'static str>,
    /// Tenant; `None` without a valid key, if keys are required.
    pub tenant: Option<String>,
    /// Prefix of the stored key.
    pub key: Option<String>,
    /// Arrival of the request's head.
    pub arrived: SystemTime,
    /// Time from the arrival to the end of the request.
    pub total: Duration,
    /// Remaining limits of the key after the request was charged.
    pub limits: Option<Status>,
    /// Start of the body, if the operator enables it.
    pub body: Option<String>,
    /// Report of the generation, if a model was involved.
    pub generation: Option<GenerationReport>,
    /// Calls of tools for the request.
    pub tools: Vec<ToolReport>,
    /// Times of the stages before the engine.
    pub stages: Stages,
}

/// A call of a tool for a request, with names and duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolReport {
    /// Label of the tool's server.
    pub server: String,
    /// Name of the tool.
    pub tool: String,
    /// Duration of the call.
    pub duration: Duration,
    /// `ok`, or the kind of the failure.
    pub status: &'static str,
}

/// A model's work for a request. Times count from the submission.
#[derive(Debug)]
pub struct GenerationReport {
    /// Name of the model.
    pub model: String,
    /// Number of requested answers.
    pub n_choices: usize,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens of all answers.
    pub output_tokens: u64,
    /// Time from the arrival of the head to the submission.
    pub submitted: Duration,
    /// Start of the first step.
    pub first_step: Option<Duration>,
    /// Time of the first token.
    pub first_token: Option<Duration>,
    /// Time of the last token.
    pub last_token: Option<Duration>,
    /// Origin of the tokens, if they may be shared.
    pub cache: Option<&'static str>,
    /// `stop`, `length`, `abort` or `error`.
    pub outcome: &'static str,
    /// Timelines of the first prompts from the engine.
    pub traces: Vec<Arc<dyn TraceSource>>,
}

/// A phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestPhase {
    /// Name of the phase.
    pub name: &'static str,
    /// Start of the phase, after the arrival of the head.
    pub start: Duration,
    /// Duration of the phase.
    pub length: Duration,
}

impl GenerationReport {
    /// The timelines of those of the first prompts that have ended.
    pub fn traces(&self) -> impl Iterator<Item = &RequestTrace> {
        self.traces.iter().filter_map(|source| source.get())
    }

    /// Beginnings of the first prompts that replicas have taken over from others.
    pub fn pulled(&self) -> impl Iterator<Item = &PulledPrefix> {
        self.traces.iter().filter_map(|source| source.pulled())
    }

    /// Whether other replicas have computed the first prompts, and why.
    pub fn splits(&self) -> impl Iterator<Item = &SplitReport> {
        self.traces.iter().filter_map(|source| source.split())
    }

    /// The ends of the phases, after the arrival of the head.
    fn ends(&self) -> [(&'static str, Option<Duration>); 3] {
        // After a client's disconnection only the engine has recorded these times.
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
    /// The phases in order; their durations add up to the total time.
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

    /// Whether the request is the tenant's.
    pub fn is_of(&self, tenant: &str) -> bool {
        self.tenant.as_deref() == Some(tenant)
    }

    /// Whether the request can be explained: it addressed a model, and was authorized.
    pub fn is_explained(&self) -> bool {
        self.tenant.is_some() && self.method == Method::POST && self.route.is_some()
    }

    /// Logs a request that reached a model.
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
