//! Failover with a real model: the starter model is served by two engines of one process, the first one fails
//! at a planted step, and what the client reads over HTTP is, byte for byte, what it reads from an engine
//! that does not fail.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use throng_cli::config::ModelSection;
use throng_cli::{running, vocabulary};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle};
use throng_gateway::{Gateway, GatewayConfig, ServedModel};
use throng_model::LoadedModel;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{BackendKind, RunnerOptions};
use throng_model::runner::RunnerLimits;
use throng_text::{AnswerFormat, ChatTemplate, Tokenizer};
use tokio::net::TcpListener;

/// The engine's executor fails at this many places of each answer.
const N_DEATHS: u64 = 4;

static MODEL: LazyLock<LoadedModel> = LazyLock::new(|| {
    let (_, model) = running::open(&ModelSection::default()).expect("the starter model is built in");
    model.prepare(BackendKind::Cpu, 2, &mut |_| {}).expect("its weights are valid");
    model
});

static TOKENIZER: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(vocabulary::tokenizer(&MODEL).expect("valid").expect("it has one")));

/// The model's runner, which fails at one step.
struct Dying {
    runner: Box<dyn Executor>,
    /// Counted from 1.
    dies_at: Option<u64>,
    n_steps: u64,
    n_deaths: Arc<AtomicU64>,
}

impl Executor for Dying {
    fn capacity(&self) -> ExecutorCapacity {
        self.runner.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.n_steps += 1;
        if self.dies_at == Some(self.n_steps) {
            self.n_deaths.fetch_add(1, Ordering::Relaxed);
            return Err(ExecutorError::Device("a planted fault".into()));
        }
        self.runner.execute(batch, output)
    }
}

fn engine(dies_at: Option<u64>, n_deaths: &Arc<AtomicU64>) -> EngineHandle {
    let limits = RunnerLimits {
        n_blocks: 96,
        kv_dtype: KvDtype::F16,
        max_batch_tokens: 64,
        max_batch_sequences: 8,
        max_sequence_tokens: None,
    };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits };
    let n_deaths = Arc::clone(n_deaths);
    let mut dies_at = dies_at;
    let make = move || {
        let runner = MODEL.runner(&options).map_err(|error| ExecutorError::Device(error.to_string()))?;
        let n_deaths = Arc::clone(&n_deaths);
        // Only the first executor dies.
        Ok(Box::new(Dying { runner, dies_at: dies_at.take(), n_steps: 0, n_deaths }) as _)
    };
    Engine::start(EngineConfig::default(), make).expect("the model runs")
}

fn served_model(engines: Vec<EngineHandle>, reasoning: Option<&str>) -> ServedModel {
    let capacity = engines[0].capacity();
    let template = MODEL.chat_templates.get("default").expect("the starter model has a template");
    ServedModel {
        fingerprint: None,
        names: vec!["starter".to_owned()],
        root: "starter".to_owned(),
        engines,
        chat_template: Some(Arc::new(ChatTemplate::new(template).expect("valid"))),
        answer_format: Arc::new(AnswerFormat::of_model(None, &TOKENIZER, Some("hermes"), reasoning)),
        tokenizer: Some(Arc::clone(&TOKENIZER)),
        tokenizer_config: None,
        chat_template_defaults: Default::default(),
        generation_defaults: Default::default(),
        eos_token_ids: TOKENIZER.end_of_generation_token_ids().to_vec(),
        max_model_len: capacity.max_sequence_tokens,
        vocabulary_size: capacity.vocabulary_size,
        images: None,
        pooling: None,
        adapters: None,
        notice: None,
        held: Default::default(),
    }
}

/// What a client reads, without the time, by choice: how the events of several choices alternate depends on
/// the schedule.
type Shown = BTreeMap<u64, Vec<String>>;

fn post(address: SocketAddr, path: &str, body: &Value) -> Shown {
    let mut reply = ureq::post(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .send(body.to_string())
        .unwrap_or_else(|error| panic!("{error}: {body}"));
    let text = reply.body_mut().read_to_string().expect("an answer");
    let mut shown = Shown::new();
    for line in text.lines().filter(|line| !line.is_empty() && *line != ": ping") {
        let event: Value = serde_json::from_str(line.trim_start_matches("data: ")).unwrap_or_default();
        assert_eq!(event["error"], Value::Null, "{line}");
        let index = event["choices"][0]["index"].as_u64().unwrap_or(0);
        shown.entry(index).or_default().push(without_time(line));
    }
    shown
}

/// Without the time and the ids of calls, which are random.
fn without_time(line: &str) -> String {
    let is_digit = |c: char| c.is_ascii_hexdigit();
    let without = |line: &str, before: &str| match line.split_once(before) {
        Some((start, rest)) => format!("{start}{before}0{}", rest.trim_start_matches(is_digit)),
        None => line.to_owned(),
    };
    without(&without(line, "\"created\":"), "\"call_")
}

/// A request's answer from a server over these engines.
fn answer(
    runtime: &tokio::runtime::Runtime,
    engines: &[EngineHandle],
    (path, body): &(&str, Value),
) -> Shown {
    let (gateway, loading) = Gateway::loading(GatewayConfig::default(), Default::default()).expect("valid");
    let reasoning = body.get("thinking_token_budget").map(|_| "qwen3");
    loading.finish(vec![served_model(engines.to_vec(), reasoning)]).expect("a valid model");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(gateway.serve(listener, async move {
        let _ = stopped.await;
    }));
    let shown = post(address, path, body);
    drop(stop);
    runtime.block_on(serving).expect("no panic").expect("no error");
    shown
}

fn n_steps(engine: &EngineHandle) -> u64 {
    engine.step_log().len() as u64
}

/// The answer is the same wherever the first engine fails. Returns it.
fn survives_deaths(path: &'static str, fields: Value, n_deaths: u64) -> Shown {
    let mut body = json!({"model": "starter", "request_id": "the-same", "max_tokens": 48});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let request = (path, body);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let n_died = Arc::default();
    let undisturbed = engine(None, &n_died);
    let expected = answer(&runtime, std::slice::from_ref(&undisturbed), &request);
    let n_steps = n_steps(&undisturbed);
    assert!(n_steps > 4, "{n_steps} steps: {expected:?}");
    let n_deaths = n_deaths.min(n_steps);
    for dies_at in (1..=n_deaths).map(|i| i * n_steps / n_deaths) {
        let engines = [engine(Some(dies_at), &n_died), engine(None, &n_died)];
        let shown = answer(&runtime, &engines, &request);
        assert_eq!(shown, expected, "the engine fails at step {dies_at} of {n_steps}: {}", request.1);
    }
    // How many steps an answer takes depends on the drafts, and these on the time that steps take.
    let n_died = n_died.load(Ordering::Relaxed);
    assert!(n_died * 2 >= n_deaths && n_died > 0, "{n_died} of {n_deaths} steps failed: {}", request.1);
    expected
}

fn chat(fields: Value) -> Shown {
    chat_about("Tell me about the sea and the stars.", fields)
}

fn chat_about(question: &str, mut fields: Value) -> Shown {
    if fields.get("messages").is_none() {
        fields["messages"] = json!([{"role": "user", "content": question}]);
    }
    survives_deaths("/v1/chat/completions", fields, N_DEATHS)
}

/// The texts of a stream's deltas under `key`, joined.
fn joined(shown: &Shown, key: &str) -> String {
    let events = shown.values().flatten().filter_map(|line| line.strip_prefix("data: "));
    let parsed = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let texts = parsed.filter_map(|event| {
        let choice = &event["choices"][0];
        choice["delta"][key].as_str().or_else(|| choice[key].as_str()).map(str::to_owned)
    });
    texts.collect()
}

#[test]
fn greedy_with_log_probabilities() {
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    chat(json!({"stream": true, "temperature": 0, "ignore_eos": true, "stream_options": usage,
                "logprobs": true, "top_logprobs": 4}));
    survives_deaths(
        "/v1/completions",
        json!({"prompt": "The sea is", "temperature": 0, "ignore_eos": true, "logprobs": 3, "echo": true}),
        N_DEATHS,
    );
}

#[test]
fn seeded_with_penalties() {
    chat(
        json!({"stream": true, "seed": 7, "temperature": 1.2, "top_p": 0.95, "top_k": 40, "ignore_eos": true,
                "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25,
                "bad_words": ["the"], "logprobs": true}),
    );
}

#[test]
fn several_choices() {
    let shown = chat(json!({"stream": true, "seed": 3, "n": 3, "min_tokens": 12, "return_token_ids": true}));
    assert_eq!(shown.len(), 3);
}

#[test]
fn a_stop_string_that_begins_before_the_failure_and_ends_after_it() {
    let fields = json!({"prompt": "The sea is", "stream": true, "temperature": 0, "ignore_eos": true});
    let whole = joined(&survives_deaths("/v1/completions", fields.clone(), 1), "text");
    let chars: Vec<char> = whole.chars().collect();
    let middle = chars.len() / 2;
    // Long enough for several tokens; the engine fails at each step, so also between these.
    let stop: String = chars[middle..middle + 12].iter().collect();
    let mut fields = fields;
    fields["stop"] = json!([stop]);
    let cut = joined(&survives_deaths("/v1/completions", fields, u64::MAX), "text");
    assert_eq!(cut, whole[..whole.find(&stop).expect("it is a part of the text")]);
}

#[test]
fn a_json_schema() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "tags", "size"],
        "properties": {"name": {"type": "string", "minLength": 8, "maxLength": 20}, "size": {"type": "integer"},
                       "tags": {"type": "array", "items": {"enum": ["sea", "star"]}, "minItems": 2, "maxItems": 4}}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": true}});
    let shown = chat(json!({"stream": true, "seed": 11, "max_tokens": 120, "response_format": format}));
    let object: Value = serde_json::from_str(&joined(&shown, "content")).expect("the schema's JSON");
    assert!(object["tags"].as_array().expect("a list").len() >= 2);
}

#[test]
fn tool_calls() {
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["city"],
                            "properties": {"city": {"type": "string", "minLength": 10, "maxLength": 24}}});
    let tool = json!({"type": "function",
                      "function": {"name": "weather", "parameters": parameters, "strict": true}});
    let shown = chat(json!({"stream": true, "seed": 5, "max_tokens": 120, "tools": [tool],
                            "tool_choice": "required", "parallel_tool_calls": false}));
    let lines: String = shown.values().flatten().map(String::as_str).collect();
    assert!(lines.contains("tool_calls") && lines.contains("weather"), "{lines}");
}

#[test]
fn reasoning_with_a_budget() {
    let messages = json!([{"role": "user", "content": "What is the sea?"},
                          {"role": "assistant", "content": "<think>They ask about the"}]);
    let shown = chat(json!({"stream": true, "temperature": 0, "ignore_eos": true, "messages": messages,
                            "add_generation_prompt": false, "continue_final_message": true,
                            "thinking_token_budget": 12}));
    let reasoning = joined(&shown, "reasoning_content") + &joined(&shown, "reasoning");
    assert!(!reasoning.is_empty() && !joined(&shown, "content").is_empty(), "{shown:?}");
}
