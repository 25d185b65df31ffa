//! A real server on a real socket over the paper executor, and a client that sends exactly the given bytes.

mod front;
mod socket;
mod stored;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use throng_core::request::GenerationDefaults;
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle};
use throng_gateway::{
    AdapterSettings, Gateway, GatewayConfig, GatewayError, ImageInput, Loading, PoolingModel, PoolingOutput,
    ServedModel,
};
use throng_testkit::paper_executor::PaperExecutor;
use throng_text::{AnswerFormat, ChatTemplate, Tokenizer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use front::Front;
pub use socket::Socket;
pub use stored::Stored;

pub const VOCABULARY: u32 = 259;
pub const START: u32 = 256;
pub const END: u32 = 257;
pub const MAX_LEN: u32 = 4096;
/// The model of [`Setup::has_embedder`].
pub const EMBEDDER: &str = "embedder";
/// The longest wait of a failing test; a passing test never waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

const TEMPLATE: &str = "{% for m in messages %}{% if m.content == 'refuse me' %}{{ raise_exception('so be it') }}\
                        {% endif %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// Settings of a test server.
pub struct Setup {
    pub config: GatewayConfig,
    pub capacity: ExecutorCapacity,
    pub engine: EngineConfig,
    pub step_time: Duration,
    pub has_tokenizer: bool,
    pub adapters: Option<AdapterSettings>,
    pub answer_format: AnswerFormat,
    /// Control tokens of the tokenizer, from id 259 on.
    pub markers: &'static [&'static str],
    /// Whether a second model, [`EMBEDDER`], gives the letters of texts as their embeddings.
    pub has_embedder: bool,
    /// The address to listen on, with its port.
    pub bind: &'static str,
    /// The chat template.
    pub template: String,
    /// How the model takes images.
    pub images: Option<Arc<ImageInput>>,
    /// What holds where a request says nothing.
    pub generation_defaults: GenerationDefaults,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: GatewayConfig::default(),
            capacity: ExecutorCapacity {
                n_blocks: 2048,
                max_batch_tokens: 512,
                max_batch_sequences: 64,
                max_sequence_tokens: MAX_LEN,
                vocabulary_size: VOCABULARY,
                n_state_slots: 0,
                max_steps_in_flight: 1,
                takes_whole_prompts: false,
                takes_media: false,
                keeps_media_whole: false,
                n_stages: 1,
            },
            engine: EngineConfig::default(),
            step_time: Duration::ZERO,
            has_tokenizer: true,
            adapters: None,
            answer_format: AnswerFormat::default(),
            markers: &[],
            images: None,
            has_embedder: false,
            bind: "127.0.0.1:0",
            template: TEMPLATE.to_owned(),
            generation_defaults: GenerationDefaults::default(),
        }
    }
}

/// The paper executor with slow steps.
struct Paced {
    paper: PaperExecutor,
    step_time: Duration,
}

impl Executor for Paced {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if !self.step_time.is_zero() {
            std::thread::sleep(self.step_time);
        }
        self.paper.execute(batch, output)
    }
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    /// The operator's listener, where the configuration has one.
    pub admin_address: Option<SocketAddr>,
    /// The first of `engines`.
    pub engine: EngineHandle,
    pub engines: Vec<EngineHandle>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), GatewayError>>,
}

/// An executor of which only what it answers is of interest.
struct Answering<F> {
    capacity: ExecutorCapacity,
    answer: F,
}

impl<F: FnMut(&ScheduledBatch, &ScheduledSequence, &mut StepOutput) + Send> Executor for Answering<F> {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        for scheduled in batch.sequences() {
            output.begin_sequence();
            if scheduled.sample {
                (self.answer)(batch, scheduled, output);
            }
        }
        Ok(())
    }
}

impl Server {
    pub async fn start(setup: Setup) -> Self {
        let (capacity, step_time) = (setup.capacity, setup.step_time);
        let make = move || Ok(Box::new(Paced { paper: PaperExecutor::new(capacity), step_time }) as _);
        let engine = Engine::start(setup.engine.clone(), make).expect("the paper executor starts");
        Self::over(engine, setup).await
    }

    /// A server over an executor that does for each sequence that needs a token what `answer` does.
    pub async fn answering(
        setup: Setup,
        answer: impl FnMut(&ScheduledBatch, &ScheduledSequence, &mut StepOutput) + Clone + Send + 'static,
    ) -> Self {
        let capacity = ExecutorCapacity { vocabulary_size: VOCABULARY, ..setup.capacity };
        let make = move || Ok(Box::new(Answering { capacity, answer: answer.clone() }) as _);
        let engine = Engine::start(EngineConfig::default(), make).expect("the executor starts");
        Self::over(engine, setup).await
    }

    /// A server over an engine of any kind.
    pub async fn over(engine: EngineHandle, setup: Setup) -> Self {
        Self::over_all(vec![engine], setup).await
    }

    /// A server over several engines with the same model.
    pub async fn over_all(engines: Vec<EngineHandle>, setup: Setup) -> Self {
        let has_embedder = setup.has_embedder;
        let (server, loading, model) = Self::loading_over(engines, setup).await;
        let models = if has_embedder { vec![embedder(&model), model] } else { vec![model] };
        loading.finish(models).expect("valid models");
        server
    }

    /// A server whose model has not come yet.
    pub async fn without_model(setup: Setup) -> (Self, Loading, ServedModel) {
        let capacity = setup.capacity;
        let make = move || Ok(Box::new(PaperExecutor::new(capacity)) as _);
        let engine = Engine::start(setup.engine.clone(), make).expect("the paper executor starts");
        Self::loading_over(vec![engine], setup).await
    }

    async fn loading_over(engines: Vec<EngineHandle>, setup: Setup) -> (Self, Loading, ServedModel) {
        let tokenizer = setup.has_tokenizer.then(|| {
            let mut tokenizer = byte_tokenizer_with(setup.markers);
            tokenizer.limit_to_context(setup.capacity.max_sequence_tokens as usize);
            Arc::new(tokenizer)
        });
        let model = ServedModel {
            fingerprint: None,
            names: vec!["paper".to_owned(), "org/paper".to_owned()],
            root: "org/paper".to_owned(),
            engines: engines.clone(),
            chat_template: tokenizer
                .is_some()
                .then(|| Arc::new(ChatTemplate::new(&setup.template).expect("a valid template"))),
            answer_format: Arc::new(setup.answer_format),
            tokenizer,
            tokenizer_config: Some(r#"{"tokenizer_class":"Paper"}"#.into()),
            chat_template_defaults: Default::default(),
            images: setup.images,
            generation_defaults: setup.generation_defaults,
            eos_token_ids: vec![END],
            max_model_len: setup.capacity.max_sequence_tokens,
            vocabulary_size: setup.capacity.vocabulary_size,
            pooling: None,
            adapters: setup.adapters,
            notice: Some("a paper model".to_owned()),
            held: Default::default(),
        };
        let admin_listen = setup.config.access.admin_listen.clone();
        let (gateway, loading) =
            Gateway::loading(setup.config, Default::default()).expect("a valid configuration");
        let listener = TcpListener::bind(setup.bind).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (mut gateway, mut admin_address) = (gateway, None);
        if let Some(place) = admin_listen {
            let admin = TcpListener::bind(place).await.expect("a free port");
            admin_address = Some(admin.local_addr().expect("a bound socket"));
            gateway = gateway.with_admin_listener(admin);
        }
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(gateway.serve(listener, async move {
            let _ = stopped.await;
        }));
        let engine = engines[0].clone();
        (Self { address, admin_address, engine, engines, stop: Some(stop), task }, loading, model)
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Begins the server's shutdown.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has ended.
    pub async fn stopped(self) {
        let ended = tokio::time::timeout(PATIENCE, self.task).await.expect("the server ends");
        ended.expect("no panic").expect("no error");
    }

    /// Waits until the engine's statistics have this many output tokens; they are updated after a step's
    /// events.
    pub async fn has_made(&self, n_tokens: u64) {
        let made = async {
            while self.engine.stats().scheduler.counters.output_tokens < n_tokens {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, made).await.expect("the tokens are made");
    }

    /// Waits until nothing runs or waits in the engines, and no block is held.
    pub async fn idle(&self) {
        let is_idle = |engine: &EngineHandle| {
            let stats = engine.stats().scheduler;
            stats.running + stats.waiting + stats.paused + stats.queued_requests + stats.used_blocks == 0
        };
        let idle = async {
            while !self.engines.iter().all(is_idle) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("the engine becomes idle");
    }
}

/// A model that counts the letters of a text, beside `other`, whose tokenizer it has. Texts of more than
/// 1,000 bytes take it a second.
fn embedder(other: &ServedModel) -> ServedModel {
    let capacity = Setup::default().capacity;
    let capacity = ExecutorCapacity { takes_whole_prompts: true, max_batch_tokens: MAX_LEN, ..capacity };
    let answer = move |batch: &ScheduledBatch, scheduled: &ScheduledSequence, output: &mut StepOutput| {
        let tokens = batch.tokens(scheduled);
        if tokens.len() > 1000 {
            std::thread::sleep(Duration::from_secs(1));
        }
        let mut counts = vec![0.0; 26];
        for token in tokens {
            let letter = u8::try_from(*token).unwrap_or_default().to_ascii_lowercase();
            if letter.is_ascii_lowercase() {
                counts[usize::from(letter - b'a')] += 1.0;
            }
        }
        output.push_vector(&counts);
    };
    let make = move || Ok(Box::new(Answering { capacity, answer }) as _);
    let engine = Engine::start(EngineConfig::default(), make).expect("the executor starts");
    let pooling = PoolingModel {
        output: PoolingOutput::Embedding,
        normalizes: false,
        n_segments: 1,
        segment_stride: 0,
        prompts: Default::default(),
        default_prompt: None,
    };
    ServedModel {
        names: vec![EMBEDDER.to_owned()],
        root: EMBEDDER.to_owned(),
        engines: vec![engine],
        chat_template: None,
        pooling: Some(pooling),
        adapters: None,
        notice: None,
        ..other.clone()
    }
}

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Status, type, param and code of an error.
    pub fn error(&self) -> (u16, String, Value, String) {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        assert!(self.header("x-request-id").is_some());
        let error = &self.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("message").is_empty(), "{error}");
        (self.status, text("type"), error["param"].clone(), text("code"))
    }

    /// The `data:` of every event; checks the frames.
    pub fn events(&self) -> Vec<String> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"), "{self:?}");
        let text = self.text();
        assert!(text.ends_with("\n\n"), "{text}");
        let frames = text.split_terminator("\n\n").filter(|frame| *frame != ": ping");
        frames.map(|f| f.strip_prefix("data: ").expect("a data frame").to_owned()).collect()
    }

    /// The events as JSON, without the final `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).expect("json")).collect()
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("the server accepts"), buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A server that refuses a request may close the connection before it has read everything.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        self.reply().await.expect("a response")
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.send(post_bytes(path, &body.to_string(), &[])).await;
        self.reply().await.expect("a response")
    }

    /// Reads a response whole; `None` when the connection closes instead.
    pub async fn reply(&mut self) -> Option<Reply> {
        tokio::time::timeout(PATIENCE, self.read_reply()).await.expect("the server answers")
    }

    /// Whether the server closes the connection without another byte.
    pub async fn is_closed(&mut self) -> bool {
        let more = tokio::time::timeout(PATIENCE, self.fill()).await.expect("the server closes or sends");
        self.buffer.is_empty() && !more
    }

    /// Reads until `text` has arrived; returns everything read.
    pub async fn read_until(&mut self, text: &str) -> String {
        let read = async {
            loop {
                let so_far = String::from_utf8_lossy(&self.buffer).into_owned();
                if so_far.contains(text) {
                    return so_far;
                }
                assert!(self.fill().await, "closed before {text:?}: {so_far}");
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("it comes")
    }

    async fn fill(&mut self) -> bool {
        let mut chunk = [0; 16 << 10];
        let n = self.stream.read(&mut chunk).await.unwrap_or(0);
        self.buffer.extend_from_slice(&chunk[..n]);
        n > 0
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buffer.drain(..end + 2).take(end).collect();
                return Some(String::from_utf8(line).expect("ascii"));
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < n {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.buffer.drain(..n).collect())
    }

    async fn read_reply(&mut self) -> Option<Reply> {
        let status = self.line().await?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a field");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        if status == 100 {
            return Box::pin(self.read_reply()).await;
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).expect("a chunk size");
                reply.body.extend(self.take(size).await?);
                self.line().await?;
                if size == 0 {
                    return Some(reply);
                }
            }
        }
        let n = reply.header("content-length").map_or(0, |n| n.parse().expect("a length"));
        reply.body = if status == 304 { Vec::new() } else { self.take(n).await? };
        Some(reply)
    }
}

pub fn post_bytes(path: &str, body: &str, fields: &[&str]) -> Vec<u8> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let n = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{fields}\
         content-length: {n}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A body for chat completions with these fields in addition to the required ones.
pub fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "paper", "messages": [{"role": "user", "content": "Hello"}]});
    merge(&mut body, fields);
    body
}

/// A body for text completions with these fields in addition to the required ones.
pub fn completion(fields: Value) -> Value {
    let mut body = json!({"model": "paper", "prompt": "Hello"});
    merge(&mut body, fields);
    body
}

fn merge(body: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    body.as_object_mut().expect("an object").extend(fields);
}

/// Ids 0–255 are bytes, then `<|start|>`, `<|end|>` and one ordinary token.
pub fn byte_tokenizer() -> Tokenizer {
    byte_tokenizer_with(&[])
}

/// The same with more control tokens, from id 259 on.
pub fn byte_tokenizer_with(markers: &[&str]) -> Tokenizer {
    let file = byte_tokenizer_json(markers);
    Tokenizer::from_tokenizer_json(file.as_bytes(), None).expect("a valid tokenizer")
}

/// The `tokenizer.json` of [`byte_tokenizer_with`].
pub fn byte_tokenizer_json(markers: &[&str]) -> String {
    let vocabulary: Map<String, Value> =
        (0..=255u8).map(|byte| (byte_letter(byte).to_string(), json!(byte))).collect();
    let special = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": false});
    let mut added = vec![
        special(START, "<|start|>", true),
        special(END, "<|end|>", true),
        special(258, "<plain>", false),
    ];
    added.extend((VOCABULARY..).zip(markers).map(|(id, marker)| special(id, marker, true)));
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": false, "vocab": vocabulary, "merges": []}
    })
    .to_string()
}

/// The letter for a byte in byte-level vocabularies (GPT-2's table).
fn byte_letter(byte: u8) -> char {
    let shown = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if shown(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|&b| !shown(b)).count() as u32;
    char::from_u32(256 + n_before).expect("a letter")
}
