//! Metrics of requests to a model, with the names in vLLM's dashboards. Does not know HTTP.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use throng_core::fleet::overload::ServiceClass;
use throng_core::request::FinishReason;
use throng_fleet::replica::{ReplicaErrorKind, Timing};

const TTFT_BUCKETS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_GAP_BUCKETS_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const LATENCY_BUCKETS_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TOKEN_BUCKETS: [f64; 18] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];
const N_BUCKETS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
const PREFILL_TOKEN_BUCKETS_S: [f64; 13] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Labels of a model and its engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabels {
    /// First name of the model.
    pub model_name: String,
    /// Index of the engine among those of its model; 0 for metrics of all engines together.
    pub engine: u32,
}

impl ModelLabels {
    /// Labels of a model's metrics, for any engine that serves it.
    pub fn of_model(model_name: &str) -> Self {
        Self::of_engine(model_name, 0)
    }

    /// Labels of one of a model's engines.
    pub fn of_engine(model_name: &str, engine: u32) -> Self {
        Self { model_name: model_name.to_owned(), engine }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model_name: String,
    engine: u32,
    finished_reason: &'static str,
}

impl ReasonLabels {
    fn new(labels: &ModelLabels, finished_reason: &'static str) -> Self {
        let ModelLabels { model_name, engine } = labels.clone();
        Self { model_name, engine, finished_reason }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    model_name: String,
    engine: u32,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    model_name: String,
    engine: u32,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    model_name: String,
    engine: u32,
    class: &'static str,
}

type Histograms = Family<ModelLabels, Histogram, fn() -> Histogram>;
/// Creates and registers a histogram with a name, a help text and buckets.
type MakeHistograms<'a> = dyn FnMut(&str, &str, fn() -> Histogram) -> Histograms + 'a;

/// Metrics of all models.
#[derive(Debug)]
pub struct RequestMetrics {
    success: Family<ReasonLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
    overloaded: Family<ClassLabels, Counter>,
    stream_errors: Family<ModelLabels, Counter>,
    residency: Family<OutcomeLabels, Counter>,
    time_to_first_token: Histograms,
    inter_token_latency: Histograms,
    time_per_output_token: Histograms,
    time_per_prefill_token: Histograms,
    end_to_end: Histograms,
    queue: Histograms,
    prefill: Histograms,
    decode: Histograms,
    inference: Histograms,
    prompt_tokens: Histograms,
    computed_prompt_tokens: Histograms,
    generation_tokens: Histograms,
    max_generation_tokens: Histograms,
    params_n: Histograms,
    params_max_tokens: Histograms,
}

impl RequestMetrics {
    /// Registers the metrics at a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::with_histograms(&mut |name, help, buckets| {
            let family = Family::new_with_constructor(buckets);
            registry.register(format!("vllm:{name}"), help, family.clone());
            family
        });
        let Self { success, rejections, overloaded, stream_errors, residency, inter_token_latency, .. } =
            &metrics;
        // The name in vLLM before version 0.11, which many dashboards still use.
        let help = "Between two tokens; the same as vllm:inter_token_latency_seconds";
        registry.register("vllm:time_per_output_token_seconds", help, inter_token_latency.clone());
        registry.register("vllm:request_success", "Continuations ended, by reason", success.clone());
        registry.register("vllm:admission_rejections", "Requests refused, by reason", rejections.clone());
        let help = "Requests refused because they would have waited for too long, by class of service";
        registry.register("throng_overload_rejections", help, overloaded.clone());
        registry.register("throng_stream_errors", "Streams that ended with an error", stream_errors.clone());
        let help = "Requests bound to regions: sent to a replica there, or refused";
        registry.register("throng_residency_requests", help, residency.clone());
        metrics
    }

    fn with_histograms(make: &mut MakeHistograms<'_>) -> Self {
        let latency: fn() -> Histogram = || Histogram::new(LATENCY_BUCKETS_S);
        let gap: fn() -> Histogram = || Histogram::new(TOKEN_GAP_BUCKETS_S);
        let tokens: fn() -> Histogram = || Histogram::new(TOKEN_BUCKETS);
        Self {
            success: Family::default(),
            rejections: Family::default(),
            overloaded: Family::default(),
            stream_errors: Family::default(),
            residency: Family::default(),
            time_to_first_token: make(
                "time_to_first_token_seconds",
                "From arrival to the first token",
                || Histogram::new(TTFT_BUCKETS_S),
            ),
            inter_token_latency: make("inter_token_latency_seconds", "Between two tokens", gap),
            time_per_output_token: make(
                "request_time_per_output_token_seconds",
                "Mean time between two tokens of a request",
                gap,
            ),
            time_per_prefill_token: make(
                "time_per_prefill_token_request_seconds",
                "Prefill time of a request for each prompt token that it computed",
                || Histogram::new(PREFILL_TOKEN_BUCKETS_S),
            ),
            end_to_end: make("e2e_request_latency_seconds", "From arrival to the end", latency),
            queue: make("request_queue_time_seconds", "From arrival to the first step", latency),
            prefill: make("request_prefill_time_seconds", "From the first step to the first token", latency),
            decode: make("request_decode_time_seconds", "From the first token to the last", latency),
            inference: make(
                "request_inference_time_seconds",
                "From the first step to the last token",
                latency,
            ),
            prompt_tokens: make("request_prompt_tokens", "Prompt tokens of a request", tokens),
            computed_prompt_tokens: make(
                "request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were not found in the cache",
                tokens,
            ),
            generation_tokens: make("request_generation_tokens", "Output tokens of a request", tokens),
            max_generation_tokens: make(
                "request_max_num_generation_tokens",
                "Output tokens of the longest continuation of a request",
                tokens,
            ),
            params_n: make("request_params_n", "The request parameter n", || Histogram::new(N_BUCKETS)),
            params_max_tokens: make("request_params_max_tokens", "The request parameter max_tokens", tokens),
        }
    }

    /// Creates the metrics of one model, which the caller keeps.
    pub fn of_model(&self, labels: &ModelLabels) -> ModelMetrics {
        // A counter that starts at 0 has a rate from its first event on.
        for finished_reason in FINISHED_REASONS {
            drop(self.success.get_or_create(&ReasonLabels::new(labels, finished_reason)));
        }
        ModelMetrics {
            labels: labels.clone(),
            success: self.success.clone(),
            rejections: self.rejections.clone(),
            overloaded: self.overloaded.clone(),
            stream_errors: self.stream_errors.get_or_create_owned(labels),
            residency: self.residency.clone(),
            time_to_first_token: self.time_to_first_token.get_or_create_owned(labels),
            inter_token_latency: self.inter_token_latency.get_or_create_owned(labels),
            time_per_output_token: self.time_per_output_token.get_or_create_owned(labels),
            time_per_prefill_token: self.time_per_prefill_token.get_or_create_owned(labels),
            end_to_end: self.end_to_end.get_or_create_owned(labels),
            queue: self.queue.get_or_create_owned(labels),
            prefill: self.prefill.get_or_create_owned(labels),
            decode: self.decode.get_or_create_owned(labels),
            inference: self.inference.get_or_create_owned(labels),
            prompt_tokens: self.prompt_tokens.get_or_create_owned(labels),
            computed_prompt_tokens: self.computed_prompt_tokens.get_or_create_owned(labels),
            generation_tokens: self.generation_tokens.get_or_create_owned(labels),
            max_generation_tokens: self.max_generation_tokens.get_or_create_owned(labels),
            params_n: self.params_n.get_or_create_owned(labels),
            params_max_tokens: self.params_max_tokens.get_or_create_owned(labels),
        }
    }
}

/// Metrics of one model.
#[derive(Debug)]
pub struct ModelMetrics {
    labels: ModelLabels,
    success: Family<ReasonLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
    overloaded: Family<ClassLabels, Counter>,
    stream_errors: Counter,
    residency: Family<OutcomeLabels, Counter>,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    time_per_prefill_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    computed_prompt_tokens: Histogram,
    generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
}

impl ModelMetrics {
    /// Counts an admitted request.
    pub fn admitted(&self, n_prompt_tokens: usize, n: u32, max_tokens: u32) {
        self.prompt_tokens.observe(n_prompt_tokens as f64);
        self.params_n.observe(f64::from(n));
        self.params_max_tokens.observe(f64::from(max_tokens));
    }

    /// Name of the model, and counters of its requests that a residency rule binds: sent to a replica, and
    /// refused.
    pub fn residency(&self) -> (&str, [Counter; 2]) {
        let counter = |outcome| {
            let ModelLabels { model_name, engine } = self.labels.clone();
            self.residency.get_or_create_owned(&OutcomeLabels { model_name, engine, outcome })
        };
        (&self.labels.model_name, ["placed", "refused"].map(counter))
    }

    /// Counts a refused request.
    pub fn rejected(&self, reason: &'static str) {
        let ModelLabels { model_name, engine } = self.labels.clone();
        self.rejections.get_or_create(&RejectionLabels { model_name, engine, reason }).inc();
    }

    /// Counts a request refused with this error by service class, if the error is overload.
    pub fn overloaded(&self, kind: ReplicaErrorKind, class: ServiceClass) {
        if let ReplicaErrorKind::Overloaded { .. } = kind {
            let ModelLabels { model_name, engine } = self.labels.clone();
            self.overloaded.get_or_create(&ClassLabels { model_name, engine, class: class.name() }).inc();
        }
    }

    /// Records the gap before an output token other than the first.
    pub fn token_gap(&self, gap: Duration) {
        self.inter_token_latency.observe(gap.as_secs_f64());
    }

    /// Counts a computed prompt, of which `n_computed` tokens were not in the prefix cache.
    pub fn prompt_computed(&self, n_computed: usize) {
        self.computed_prompt_tokens.observe(n_computed as f64);
    }

    /// Counts a prompt all of whose continuations have ended, the longest of them with `n_longest` tokens.
    pub fn prompt_ended(&self, n_longest: u32) {
        self.max_generation_tokens.observe(f64::from(n_longest));
    }

    /// Counts the end of a continuation; `n_computed` tokens of its prompt were computed.
    pub fn finished(&self, reason: FinishReason, timing: &Timing, n_computed: usize) {
        self.success.get_or_create(&ReasonLabels::new(&self.labels, reason_name(reason))).inc();
        self.generation_tokens.observe(f64::from(timing.n_output));
        let observe = |histogram: &Histogram, time: Option<Duration>| {
            if let Some(time) = time {
                histogram.observe(time.as_secs_f64());
            }
        };
        observe(&self.time_to_first_token, timing.first_token);
        observe(&self.time_per_output_token, timing.per_output_token());
        observe(&self.end_to_end, Some(timing.end));
        observe(&self.queue, timing.first_step);
        observe(&self.prefill, timing.prefill());
        let n_computed = u32::try_from(n_computed).unwrap_or(u32::MAX).max(1);
        observe(&self.time_per_prefill_token, timing.prefill().map(|prefill| prefill / n_computed));
        observe(&self.decode, timing.decode());
        let inference = timing.prefill().zip(timing.decode()).map(|(prefill, decode)| prefill + decode);
        observe(&self.inference, inference);
    }

    /// Counts a continuation whose client has disconnected.
    pub fn aborted(&self) {
        let finished_reason = reason_name(FinishReason::Abort);
        self.success.get_or_create(&ReasonLabels::new(&self.labels, finished_reason)).inc();
    }

    /// Counts a stream that ended with an error event.
    pub fn stream_error(&self) {
        self.stream_errors.inc();
    }
}

const FINISHED_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Error => "error",
    }
}
