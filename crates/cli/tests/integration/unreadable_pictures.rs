//! A picture that the encoder does not read, through the engine: its request fails with the reason, and the
//! requests computed in the same steps get, to the bit, what they get alone.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;
use throng_core::engine::EngineFailure;
use throng_core::fleet::replica::TokenReport;
use throng_core::prompt_media::{ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, SpanKind};
use throng_core::request::{FinishReason, Request, RequestId, SamplingParams, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle, StreamEvent, TokenStream};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_vision::with_vision;

/// Patches of a picture, and its tokens: four patches each.
const GRID: [u32; 2] = [4, 6];
const N_TOKENS: u32 = 6;
const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 64,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 192,
    max_batch_sequences: 8,
    max_sequence_tokens: None,
};

/// The requests of every step, and whether the first step may run.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, Vec<Vec<RequestId>>)>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        self.state.lock().expect("no panic").0 = true;
        self.opened.notify_all();
    }

    fn pass(&self, batch: &ScheduledBatch) {
        let mut state = self.state.lock().expect("no panic");
        while !state.0 {
            state = self.opened.wait(state).expect("no panic");
        }
        state.1.push(batch.sequences().iter().map(|scheduled| scheduled.id.request).collect());
    }

    /// The steps in which both were computed.
    fn n_shared(&self, one: RequestId, other: RequestId) -> usize {
        let state = self.state.lock().expect("no panic");
        state.1.iter().filter(|step| step.contains(&one) && step.contains(&other)).count()
    }
}

/// A runner whose steps wait until the gate is open.
struct Gated {
    runner: Box<dyn Executor>,
    gate: Arc<Gate>,
}

impl Executor for Gated {
    fn capacity(&self) -> ExecutorCapacity {
        self.runner.capacity()
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.gate.pass(batch);
        self.runner.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.runner.collect(batch, output)
    }
}

/// Events of a stream.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<TokenReport>,
    end: Option<FinishReason>,
    failure: Option<EngineFailure>,
}

fn read(mut stream: TokenStream) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = stream.blocking_next() {
        match event {
            StreamEvent::Prompt { .. } => {}
            StreamEvent::Token { report, .. } => answer.tokens.push(report),
            StreamEvent::Finished { reason, .. } => answer.end = Some(reason),
            StreamEvent::Failed { error } => answer.failure = Some(error),
        }
    }
    answer
}

/// A tiny Qwen3-VL, and its token of pictures.
fn model() -> (LoadedModel, TokenId) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vision/tests/fixtures/qwen3-vl");
    let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
    let model = load(&folder, &options, &mut |_| {}).expect("the folder is a model");
    let config = std::fs::read(folder.join("config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let token = config["image_token_id"].as_u64().expect("a token");
    (with_vision(model, None).expect("the encoder is known"), token as TokenId)
}

fn engine(model: LoadedModel, gate: &Arc<Gate>) -> EngineHandle {
    let gate = Arc::clone(gate);
    let make = move || {
        let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits: LIMITS };
        let runner = model.runner(&options).expect("a runner");
        Ok(Box::new(Gated { runner, gate: Arc::clone(&gate) }) as Box<dyn Executor>)
    };
    Engine::start(EngineConfig::default(), make).expect("it starts")
}

/// A picture of patches with `n_values` values each, of which the model's encoder reads 96.
fn picture(n_values: u32, seed: u64) -> MediaContent {
    let mut rng = fastrand::Rng::with_seed(seed);
    let layout = ContentLayout {
        kind: SpanKind::Image,
        grid: [1, GRID[0], GRID[1]],
        shape: vec![GRID[0] * GRID[1], n_values],
        runs: vec![FeatureRun { offset: 0, len: N_TOKENS }],
    };
    let pixels: Vec<f32> = (0..layout.n_values().expect("few")).map(|_| rng.f32() - 0.5).collect();
    MediaContent::new(layout, pixels.into()).expect("values of that shape")
}

/// A prompt with pictures of patches with so many values.
fn prompt(token: TokenId, pictures: &[u32], seed: u64) -> (Vec<TokenId>, Option<Arc<PromptMedia>>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut tokens, mut media, mut grids) = (Vec::new(), PromptMedia::default(), Vec::new());
    let mut text = |tokens: &mut Vec<TokenId>| tokens.extend((0..rng.u32(3..20)).map(|_| rng.u32(10..200)));
    text(&mut tokens);
    for (number, n_values) in (0..).zip(pictures) {
        let content = picture(*n_values, seed + number);
        let (start, digest) = (tokens.len() as u32, content.digest());
        let span = PromptSpan { start, len: N_TOKENS, digest, kind: SpanKind::Image };
        tokens.extend([token; N_TOKENS as usize]);
        grids.push((span, [1, GRID[0] / 2, GRID[1] / 2]));
        media.spans.push(span);
        media.contents.push(Arc::new(content));
        text(&mut tokens);
    }
    media.positions = PromptMedia::grid_positions(tokens.len() as u32, &grids);
    (tokens, (!pictures.is_empty()).then(|| Arc::new(media)))
}

#[test]
fn batch_mates_are_unharmed_when_a_picture_cannot_be_read() {
    let (model, token) = model();
    let gate = Arc::new(Gate::default());
    let engine = engine(model, &gate);
    let request = |pictures: &[u32], seed: u64| {
        let (tokens, media) = prompt(token, pictures, seed);
        let sampling = SamplingParams {
            max_tokens: 6,
            ignore_eos: true,
            temperature: 0.8,
            seed,
            logprobs: Some(2),
            ..Default::default()
        };
        Request { media, ..Request::plain(engine.next_request_id(), tokens, sampling) }
    };
    let submit = |request: &Request| engine.submit(request.clone()).expect("there is room");
    const READABLE: u32 = 96;
    // The first one is computed alone; all others wait for the gate, and are computed together.
    let of_mates: [&[u32]; 4] = [&[READABLE], &[], &[READABLE, READABLE], &[READABLE]];
    let mates: Vec<Request> =
        of_mates.iter().zip(1..).map(|(pictures, seed)| request(pictures, seed)).collect();
    let broken = [request(&[5], 11), request(&[READABLE, 5], 12)];
    let first = submit(&mates[0]);
    let lost = broken.each_ref().map(submit);
    let rest: Vec<TokenStream> = mates[1..].iter().map(submit).collect();
    gate.open();
    let failure = EngineFailure::SequenceFailed(SequenceError::UnreadableMedia);
    for stream in lost {
        let told = read(stream);
        assert_eq!((told.failure, told.tokens.len(), told.end), (Some(failure.clone()), 0, None));
    }
    let together: Vec<Answer> = std::iter::once(first).chain(rest).map(read).collect();
    for broken in &broken {
        let shared: usize = mates.iter().map(|mate| gate.n_shared(broken.id, mate.id)).sum();
        assert!(shared > 0, "it was computed beside others");
    }
    assert_eq!((engine.stats().executor_restarts, engine.stats().failures.requests), (0, 2));
    for ((answer, pictures), seed) in together.iter().zip(of_mates).zip(1..) {
        assert_eq!((answer.failure.as_ref(), answer.tokens.len()), (None, 6), "{pictures:?}");
        let alone = read(submit(&request(pictures, seed)));
        assert_eq!(*answer, alone, "{pictures:?}");
    }
    // Nothing of them is in a cache: they are refused again.
    let again = submit(&request(&[READABLE, 5], 12));
    assert_eq!(read(again).failure, Some(failure));
}
