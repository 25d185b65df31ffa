//! The response of `/explain`: the timeline of a request as JSON. Other requests in the same steps are
//! counted, never named. Does not check permissions.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use throng_core::fleet::limits::Remaining;
use throng_core::time::Nanos;
use throng_core::timeline::request_trace::{PromptChunk, RequestTrace, StepTotals};
use throng_fleet::replica::{PulledPrefix, SplitFallback, SplitReport};

use super::{GenerationReport, RequestReport, ToolReport};

/// Summary of a request.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    request_id: &'a str,
    /// Arrival, in seconds since the epoch.
    created: f64,
    route: Option<&'a str>,
    status: Option<u16>,
    error: Option<&'static str>,
    model: Option<&'a str>,
    outcome: Option<&'static str>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    ttft_ms: Option<f64>,
    total_ms: f64,
}

/// Full explanation of a request.
#[derive(Debug, Serialize)]
pub struct Explanation<'a> {
    object: &'static str,
    #[serde(flatten)]
    summary: Summary<'a>,
    phases: Vec<Phase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    /// Timelines of its first prompts from the engine.
    generations: Vec<Generation>,
    /// Beginnings of its prompts that a worker has taken over from another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pulled: Vec<Pulled<'a>>,
    /// Whether other workers have computed its first prompts, and why, where workers have roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    split: Vec<Split<'a>>,
    /// Calls of tools, in the order of their ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
}

#[derive(Debug, Serialize)]
struct Pulled<'a> {
    tokens: u32,
    from: &'a str,
}

#[derive(Debug, Serialize)]
struct Split<'a> {
    is_split: bool,
    /// The reason for the decision.
    why: &'static str,
    /// Prompt tokens that the worker of the answer would have had to compute.
    tokens: u64,
    /// The worker that was compared for the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Predicted>,
    /// Time that the other worker took.
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<f64>,
    /// Prompt tokens whose blocks were taken over while later ones were computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    early_tokens: Option<u32>,
    /// The reason why the worker of the answer computed the prompt after all.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
}

/// Predicted times of a prompt: computed at the worker of the answer with the delay of others, or elsewhere.
#[derive(Debug, Serialize)]
struct Predicted {
    here_ms: f64,
    delay_of_others_ms: f64,
    there_ms: f64,
    transfer_ms: f64,
}

#[derive(Debug, Serialize)]
struct Tool<'a> {
    server: &'a str,
    tool: &'a str,
    ms: f64,
    status: &'static str,
}

#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    start_ms: f64,
    ms: f64,
    about: &'static str,
}

/// Remaining limits of the key after the request was charged.
#[derive(Debug, Serialize)]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<Left>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Left>,
}

#[derive(Debug, Serialize)]
struct Left {
    limit: u64,
    remaining: u64,
}

#[derive(Debug, Serialize)]
struct Generation {
    queue_ms: f64,
    waited_for: WaitedFor,
    prefill: Steps,
    chunks: Vec<Chunk>,
    decode: Steps,
    preemptions: u32,
    /// Tokens whose keys and values were read from disk, and the time that the request waited for them.
    restored_tokens: u32,
    restoring_ms: f64,
    /// Tokens whose keys and values came from another worker.
    pulled_tokens: u32,
    pauses: u32,
    paused_ms: f64,
    end_ms: f64,
}

/// Causes of the time in the queue.
#[derive(Debug, Serialize)]
struct WaitedFor {
    running_step_ms: f64,
    sequences_ms: f64,
    blocks_ms: f64,
    step_tokens_ms: f64,
}

#[derive(Debug, Serialize)]
struct Steps {
    steps: u32,
    ms: f64,
    executing_ms: f64,
    longest_step_ms: f64,
    tokens: u32,
    drafts: u32,
    batch_mates_mean: f64,
    batch_mates_max: u32,
}

#[derive(Debug, Serialize)]
struct Chunk {
    at_ms: f64,
    ms: f64,
    position: u32,
    tokens: u32,
    batch_mates: u32,
    step_tokens: u32,
}

impl<'a> Summary<'a> {
    /// Creates the summary of a request.
    pub fn new(report: &'a RequestReport) -> Self {
        let generation = report.generation.as_ref();
        let of = |value: fn(&GenerationReport) -> u64| generation.map(value);
        Self {
            request_id: &report.request_id,
            created: report.arrived.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1e3,
            route: report.route.as_deref(),
            status: report.status,
            error: report.error_code,
            model: generation.map(|generation| generation.model.as_str()),
            outcome: generation.map(|generation| generation.outcome),
            prompt_tokens: generation.map(|generation| generation.prompt_tokens),
            cached_tokens: of(|generation| generation.cached_tokens),
            output_tokens: of(|generation| generation.output_tokens),
            ttft_ms: generation.and_then(|g| Some(ms(g.submitted + g.first_token?))),
            total_ms: ms(report.total),
        }
    }
}

impl<'a> Explanation<'a> {
    /// Creates the explanation of a request.
    pub fn new(report: &'a RequestReport) -> Self {
        let phases = report.phases().into_iter().map(|phase| Phase {
            name: phase.name,
            start_ms: ms(phase.start),
            ms: ms(phase.length),
            about: about(phase.name),
        });
        let left = |left: Option<Remaining>| left.map(|l| Left { limit: l.limit, remaining: l.remaining });
        let limits = report
            .limits
            .map(|status| Limits { requests: left(status.requests), tokens: left(status.tokens) });
        Self {
            object: "request.explanation",
            summary: Summary::new(report),
            phases: phases.collect(),
            limits: limits.filter(|limits| limits.requests.is_some() || limits.tokens.is_some()),
            generations: report.generation.iter().flat_map(|g| g.traces()).map(Generation::new).collect(),
            pulled: report.generation.iter().flat_map(|g| g.pulled()).map(Pulled::new).collect(),
            split: report.generation.iter().flat_map(|g| g.splits()).map(Split::new).collect(),
            tools: report.tools.iter().map(Tool::new).collect(),
        }
    }
}

impl<'a> Pulled<'a> {
    fn new(prefix: &'a PulledPrefix) -> Self {
        Self { tokens: prefix.n_tokens, from: &prefix.from }
    }
}

impl<'a> Split<'a> {
    fn new(report: &'a SplitReport) -> Self {
        let SplitReport { decision, prefill, took, fallback, n_early, .. } = report;
        let estimate = decision.estimate;
        let predicted = decision.prefill.map(|_| Predicted {
            here_ms: ns(estimate.here),
            delay_of_others_ms: ns(estimate.delay),
            there_ms: ns(estimate.there),
            transfer_ms: ns(estimate.transfer),
        });
        Self {
            is_split: report.is_split(),
            why: decision.verdict.name(),
            tokens: estimate.n_tokens,
            prefill: prefill.as_deref(),
            predicted,
            ms: report.is_split().then(|| ms(*took)),
            early_tokens: Some(*n_early).filter(|n| *n > 0),
            fallback: fallback.get().copied().map(SplitFallback::name),
        }
    }
}

impl<'a> Tool<'a> {
    fn new(call: &'a ToolReport) -> Self {
        Self { server: &call.server, tool: &call.tool, ms: ms(call.duration), status: call.status }
    }
}

impl Generation {
    fn new(trace: &RequestTrace) -> Self {
        Self {
            queue_ms: ns(trace.queued),
            waited_for: WaitedFor {
                running_step_ms: ns(trace.waited_for_step()),
                sequences_ms: ns(trace.waits.sequences),
                blocks_ms: ns(trace.waits.blocks),
                step_tokens_ms: ns(trace.waits.step_tokens),
            },
            prefill: Steps::new(&trace.prefill),
            chunks: trace.chunks.iter().map(Chunk::new).collect(),
            decode: Steps::new(&trace.decode),
            preemptions: trace.n_preemptions,
            pauses: trace.n_pauses,
            restored_tokens: trace.restored_tokens,
            restoring_ms: ns(trace.restoring),
            pulled_tokens: trace.pulled_tokens,
            paused_ms: ns(trace.paused),
            end_ms: ns(trace.end),
        }
    }
}

impl Steps {
    fn new(totals: &StepTotals) -> Self {
        let mean = totals.sum_mates as f64 / f64::from(totals.n_steps.max(1));
        Self {
            steps: totals.n_steps,
            ms: ns(totals.took),
            executing_ms: ns(totals.executing),
            longest_step_ms: ns(totals.longest),
            tokens: totals.n_tokens,
            drafts: totals.n_drafts,
            batch_mates_mean: (mean * 100.0).round() / 100.0,
            batch_mates_max: totals.max_mates,
        }
    }
}

impl Chunk {
    fn new(chunk: &PromptChunk) -> Self {
        Self {
            at_ms: ns(chunk.at),
            ms: ns(chunk.took),
            position: chunk.start,
            tokens: chunk.n_tokens,
            batch_mates: chunk.n_mates,
            step_tokens: chunk.n_step_tokens,
        }
    }
}

/// Description of a phase for readers.
fn about(name: &str) -> &'static str {
    match name {
        "read" => "until the whole body had arrived",
        "turn" => "waited for its turn to be tokenized",
        "tokenize" => "parsed, rendered with the chat template, tokenized",
        "admit" => "charged to the key's limits and given to an engine",
        "queue" => "waited for its first step",
        "prefill" => "the prompt was computed, up to the first token",
        "decode" => "from the first token to the last",
        _ => "until the client had taken the whole answer",
    }
}

/// Converts to milliseconds with a resolution of 1 µs.
fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

fn ns(time: Nanos) -> f64 {
    ms(Duration::from_nanos(time.0))
}
