//! A recording of an engine gives the same batches again, batch for batch, and the same load.

use std::collections::VecDeque;
use std::io::Cursor;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::engine::recording::{Header, Line, Observed, RecordedEngine, Recorder, VERSION};
use throng_core::engine::{Effect, EngineConfig, EngineCore, Epoch, Input, StepDone, StepError};
use throng_core::request::{Priority, Request, RequestId, SamplingParams, SequenceId, TenantId, TokenId};
use throng_core::scheduling::batch::{BlockId, ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_core::time::{Nanos, Timestamp};
use throng_sim::SimError;
use throng_sim::recording::{RecordedWorkload, RecordingReader, rerun};
use throng_sim::workload::Workload;

use crate::fleets::CAPACITY;

const END: TokenId = 7;

/// A sequence's share of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BatchRow {
    /// The sequence.
    sequence: SequenceId,
    /// Position of its first new token.
    start: u32,
    /// Its new tokens.
    n_tokens: u32,
    /// Whether a token is chosen.
    samples: bool,
    /// Block table of the sequence.
    blocks: Vec<BlockId>,
}

impl BatchRow {
    /// The rows of a batch.
    fn of(batch: &ScheduledBatch) -> Vec<Self> {
        let row = |scheduled: &ScheduledSequence| Self {
            sequence: scheduled.id,
            start: scheduled.start,
            n_tokens: scheduled.n_tokens() as u32,
            samples: scheduled.sample,
            blocks: batch.blocks(scheduled).to_vec(),
        };
        batch.sequences().iter().map(row).collect()
    }
}

/// An engine under random load, with everything that it does recorded.
struct World {
    rng: Rng,
    core: EngineCore,
    capacity: ExecutorCapacity,
    now: Timestamp,
    effects: Vec<Effect>,
    steps: VecDeque<Arc<ScheduledBatch>>,
    epoch: Epoch,
    awaited: Option<Epoch>,
    batches: Vec<Vec<BatchRow>>,
    recorder: Recorder,
    text: String,
    live: Vec<RequestId>,
    behind: Vec<RequestId>,
    n_requests: u64,
    /// Prompts that later ones begin with.
    prompts: Vec<Vec<TokenId>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let capacity = ExecutorCapacity {
            n_blocks: rng.u32(40..200),
            max_batch_tokens: rng.u32(20..300),
            max_batch_sequences: rng.u32(2..20),
            max_sequence_tokens: 600,
            vocabulary_size: 1000,
            max_steps_in_flight: rng.u32(1..=2),
            ..CAPACITY
        };
        let scheduler = SchedulerConfig {
            speculation: SpeculationMethod::None,
            inter_token_target_ms: rng.u32(0..40),
            prefix_caching: rng.u8(..4) > 0,
            ..SchedulerConfig::default()
        };
        let config = EngineConfig { scheduler, queue_timeout_ms: 400, ..EngineConfig::default() };
        let header = Header {
            throng_recording: VERSION,
            part: 0,
            started_unix_ms: 0,
            engine: Some(RecordedEngine::new(&config, capacity)),
        };
        let text = format!("{}\n", serde_json::to_string(&header).expect("plain"));
        Self {
            core: EngineCore::new(config, capacity),
            capacity,
            now: Timestamp::default(),
            effects: Vec::new(),
            steps: VecDeque::new(),
            epoch: Epoch(0),
            awaited: None,
            batches: Vec::new(),
            recorder: Recorder::new([9; 32], 10_000),
            text,
            live: Vec::new(),
            behind: Vec::new(),
            n_requests: 0,
            prompts: vec![Vec::new()],
            rng,
        }
    }

    fn apply(&mut self, input: &Input) {
        self.core.apply(input, self.now, &mut self.effects);
        let mut lines: Vec<Line> = Vec::new();
        self.recorder.lines(Observed::new(input, self.now, &self.effects), &mut lines);
        for line in lines {
            self.text += &serde_json::to_string(&line).expect("plain");
            self.text.push('\n');
        }
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Execute { batch, .. } => {
                    self.batches.push(BatchRow::of(&batch));
                    self.steps.push_back(batch);
                }
                Effect::ReplaceExecutor { epoch } => {
                    self.steps.clear();
                    self.awaited = Some(epoch);
                }
                Effect::Close { request, .. } => {
                    self.live.retain(|id| *id != request);
                    self.behind.retain(|id| *id != request);
                }
                _ => {}
            }
        }
    }

    fn request(&mut self) -> Request {
        let id = RequestId(self.n_requests);
        self.n_requests += 1;
        let mut prompt = self.rng.choice(&self.prompts).cloned().expect("one");
        prompt.extend((0..self.rng.usize(1..60)).map(|_| self.rng.u32(10..1000)));
        prompt.truncate(400);
        if self.prompts.len() < 30 {
            self.prompts.push(prompt.clone());
        }
        let sampling = SamplingParams {
            max_tokens: self.rng.u32(1..60),
            eos_token_ids: vec![END],
            prompt_logprobs: (self.rng.u8(..10) == 0).then_some(0),
            ..SamplingParams::default()
        };
        Request {
            tenant: TenantId(["zoe", "abe", "kim"][self.rng.usize(..3)].into()),
            priority: Priority(self.rng.i32(0..3)),
            n: self.rng.u32(1..3),
            ..Request::plain(id, prompt, sampling)
        }
    }

    fn step_done(&mut self) -> Option<Input> {
        let batch = self.steps.pop_front()?;
        let mut output = StepOutput::default();
        let fails = self.rng.u16(..) < 200;
        for scheduled in batch.sequences() {
            output.begin_sequence();
            if scheduled.sampling.prompt_logprobs.is_some() {
                let n_left = scheduled.n_prompt.saturating_sub(scheduled.start + 1) as usize;
                for _ in 0..n_left.min(scheduled.n_tokens()) {
                    output.push_prompt(TokenLogprob { token: 1, logprob: 0.0, rank: 0 }, &[]);
                }
            }
            if scheduled.sample {
                let token = if self.rng.u8(..20) == 0 { END } else { self.rng.u32(10..1000) };
                output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
            }
        }
        let result = if fails { Err(StepError::Panicked("a test".into())) } else { Ok(()) };
        Some(Input::StepDone(StepDone { epoch: self.epoch, output, executing: Nanos(5), result }))
    }

    /// The next input.
    fn input(&mut self) -> Option<Input> {
        if let Some(epoch) = self.awaited.take() {
            self.epoch = epoch;
            return Some(Input::ExecutorMade { epoch, capacity: self.capacity });
        }
        match self.rng.u8(..100) {
            0..25 => {
                let request = self.request();
                self.live.push(request.id);
                let arrived = Timestamp::from_ns(self.now.as_ns().saturating_sub(self.rng.u64(..1000)));
                Some(Input::Submit { request, arrived })
            }
            25 => self.rng.choice(&self.live).map(|id| Input::Abort(*id)),
            26 => {
                let request = *self.rng.choice(&self.live)?;
                Some(Input::AbortSequence(SequenceId { request, index: self.rng.u32(..2) }))
            }
            27..29 => {
                let request = *self.rng.choice(&self.live)?;
                self.behind.push(request);
                Some(Input::ReaderBehind { request, n_events: 40 })
            }
            29..33 => self.behind.pop().map(Input::ReaderCaughtUp),
            _ => self.step_done(),
        }
    }

    fn run(mut self, n_inputs: usize) -> Self {
        for _ in 0..n_inputs {
            self.now = self.now + Nanos(self.rng.u64(1..8_000_000));
            if let Some(input) = self.input() {
                self.apply(&input);
                // As the engine thread does: after each batch of inputs, a little later.
                if self.rng.u8(..4) > 0 || matches!(input, Input::StepDone(_)) {
                    self.now = self.now + Nanos(self.rng.u64(..1000));
                    self.apply(&Input::Tick);
                }
            }
        }
        self
    }
}

fn open(text: &str) -> Result<RecordingReader, SimError> {
    RecordingReader::open(Cursor::new(text.to_owned()))
}

#[test]
fn a_recorded_engine_plans_the_same_batches_again() {
    let (mut n_batches, mut n_hits) = (0, 0);
    for seed in 0..12 {
        let world = World::new(seed).run(4_000);
        let mut batches = Vec::new();
        let on_batch = |batch: &ScheduledBatch| batches.push(BatchRow::of(batch));
        let again = rerun(|| open(&world.text), on_batch).expect("a recording");
        for (index, (recorded, again)) in world.batches.iter().zip(&batches).enumerate() {
            let differing = recorded.iter().zip(again).find(|(recorded, again)| recorded != again);
            assert_eq!(differing, None, "seed {seed}, batch {index}");
            assert_eq!(recorded.len(), again.len(), "seed {seed}, batch {index}");
        }
        assert_eq!(world.batches.len(), batches.len(), "seed {seed}");
        assert_eq!((again.n_different, again.n_lost), (0, 0), "seed {seed}");
        n_batches += batches.len();
        n_hits += world.core.scheduler().stats().counters.cache_hit_tokens;
    }
    assert!(n_batches > 10_000 && n_hits > 10_000, "{n_batches} batches, {n_hits} cached tokens");
}

#[test]
fn a_recording_names_no_token_and_other_salts_give_other_names() {
    let world = World::new(1).run(500);
    let other = Recorder::new([8; 32], 10);
    drop(other);
    let first_line = world.text.lines().nth(1).expect("a request");
    assert!(!first_line.contains("zoe") && !world.text.contains("\"token\""));
    let mut recorder = Recorder::new([8; 32], 10);
    let mut lines = Vec::new();
    let prompt: Vec<TokenId> = (10..50).collect();
    let request = Request::plain(RequestId(1), prompt, SamplingParams::default());
    let input = Input::Submit { request, arrived: Timestamp::default() };
    recorder.lines(Observed::new(&input, Timestamp::default(), &[]), &mut lines);
    let mut same = Vec::new();
    Recorder::new([7; 32], 10).lines(Observed::new(&input, Timestamp::default(), &[]), &mut same);
    assert_ne!(lines, same, "names depend on the salt");
}

#[test]
fn the_load_of_a_recording_has_its_lengths_and_shares_its_prefixes() {
    let world = World::new(3).run(2_000);
    let mut load = RecordedWorkload::read(open(&world.text).expect("a recording")).expect("requests");
    assert!(!load.is_empty());
    let mut requests = Vec::new();
    while let Some(timed) = load.next_request().expect("no file") {
        requests.push(timed);
    }
    assert!(requests.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let firsts = requests.iter().filter(|timed| timed.request.prompt.len() > 2);
    let mut first_spans: Vec<u64> = firsts.map(|timed| timed.request.prompt[0].content).collect();
    let n = first_spans.len();
    first_spans.sort_unstable();
    first_spans.dedup();
    assert!(first_spans.len() < n, "prefixes are shared");
}

#[test]
fn damaged_recordings_are_named() {
    let world = World::new(1).run(300);
    let part = world.text.replace("\"part\":0", "\"part\":2");
    let error = rerun(|| open(&part), |_| ()).expect_err("a part").to_string();
    assert!(error.contains("part 2"), "{error}");
    let header = r#"{"throng_recording":1,"part":0,"started_unix_ms":5}"#.to_owned() + "\n";
    let error = rerun(|| open(&header), |_| ()).expect_err("no engine").to_string();
    assert!(error.contains("gateway"), "{error}");
    let error = RecordedWorkload::read(open(&header).expect("a header")).expect_err("empty").to_string();
    assert!(error.contains("no request"), "{error}");
    let damaged = world.text.replacen("\"t\":", "\"t\":x", 3);
    let error = rerun(|| open(&damaged), |_| ()).expect_err("damaged").to_string();
    assert!(error.starts_with("line 2: "), "{error}");
}
