//! A paper executor whose steps a test starts one by one, or makes hang, panic or fail; and what the engine
//! tests share around it. Nothing here waits for time to pass.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use throng_core::fleet::replica::TokenReport;
use throng_core::request::{FinishReason, Request, RequestId, SamplingParams, TenantId, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{
    Engine, EngineConfig, EngineFailure, EngineHandle, EngineStats, StreamEvent, TokenStream,
};
use throng_testkit::paper_executor::{PaperExecutor, PaperToken, paper_answer};

pub const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 64,
    max_batch_tokens: 64,
    max_batch_sequences: 16,
    max_sequence_tokens: 400,
    vocabulary_size: 50,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    Run,
    /// Until [`Gate::release_hung`].
    Hang,
    Panic,
    Fail,
    LosePeer,
}

/// What the test and all executors it makes share.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    passes: VecDeque<Pass>,
    hung_released: bool,
    n_dropped: usize,
    failing_sequence: Option<RequestId>,
    /// The requests of each step that began.
    steps: Vec<Vec<RequestId>>,
}

impl Gate {
    /// A gate that every step passes.
    pub fn open() -> Arc<Self> {
        let gate = Self::closed();
        gate.state().open = true;
        gate
    }

    /// A gate that each step waits at.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub fn let_all_pass(&self) {
        self.state().open = true;
        self.changed.notify_all();
    }

    pub fn let_pass(&self, pass: Pass) {
        self.state().passes.push_back(pass);
        self.changed.notify_all();
    }

    pub fn release_hung(&self) {
        self.state().hung_released = true;
        self.changed.notify_all();
    }

    pub fn fail_row_of(&self, request: RequestId) {
        self.state().failing_sequence = Some(request);
    }

    /// Waits until `n` steps have begun, and says what was in the last of them.
    pub fn wait_for_step(&self, n: usize) -> Vec<RequestId> {
        let mut state = self.state();
        while state.steps.len() < n {
            state = self.changed.wait(state).expect("no test panics with the lock");
        }
        state.steps[n - 1].clone()
    }

    /// Waits until `n` executors are gone.
    pub fn wait_for_drops(&self, n: usize) {
        let mut state = self.state();
        while state.n_dropped < n {
            state = self.changed.wait(state).expect("no test panics with the lock");
        }
    }

    /// The requests of each step that began.
    pub fn steps(&self) -> Vec<Vec<RequestId>> {
        self.state().steps.clone()
    }

    pub fn n_steps(&self) -> usize {
        self.state().steps.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    fn pass(&self, batch: &ScheduledBatch) -> Pass {
        let mut state = self.state();
        state.steps.push(batch.sequences().iter().map(|scheduled| scheduled.id.request).collect());
        self.changed.notify_all();
        loop {
            if let Some(pass) = state.passes.pop_front() {
                while pass == Pass::Hang && !state.hung_released {
                    state = self.changed.wait(state).expect("no test panics with the lock");
                }
                return pass;
            }
            if state.open {
                return Pass::Run;
            }
            state = self.changed.wait(state).expect("no test panics with the lock");
        }
    }
}

struct GatedExecutor {
    paper: PaperExecutor,
    gate: Arc<Gate>,
}

impl Executor for GatedExecutor {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        match self.gate.pass(batch) {
            Pass::Run | Pass::Hang => {}
            Pass::Panic => panic!("as the test wants it"),
            Pass::LosePeer => return Err(ExecutorError::PeerLost("as the test wants it".into())),
            Pass::Fail => return Err(ExecutorError::Device("as the test wants it".into())),
        }
        let Some(failing) = self.gate.state().failing_sequence else {
            return self.paper.execute(batch, output);
        };
        let mut whole = StepOutput::default();
        self.paper.execute(batch, &mut whole)?;
        output.clear();
        for (i, scheduled) in batch.sequences().iter().enumerate() {
            output.begin_sequence();
            if scheduled.id.request == failing {
                output.fail_sequence(SequenceError::SamplerPanicked);
            } else {
                whole.prompt(i).for_each(|token| output.push_prompt(token.chosen, token.top));
                whole.sampled(i).for_each(|token| output.push_sampled(token.chosen, token.top));
            }
        }
        Ok(())
    }
}

impl Drop for GatedExecutor {
    fn drop(&mut self) {
        self.gate.state().n_dropped += 1;
        self.gate.changed.notify_all();
    }
}

/// An engine behind a gate.
pub fn start(config: EngineConfig, gate: &Arc<Gate>) -> EngineHandle {
    let gate = Arc::clone(gate);
    let make = move || {
        let executor = GatedExecutor { paper: PaperExecutor::new(CAPACITY), gate: Arc::clone(&gate) };
        Ok(Box::new(executor) as Box<dyn Executor>)
    };
    Engine::start(config, make).expect("it starts")
}

/// Drains the engine and looks at it: its numbers are those of the end.
pub fn stop(engine: &EngineHandle) -> EngineStats {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(engine.drain(Duration::from_secs(3600)));
    engine.stats()
}

/// A request for `max_tokens` tokens after `prompt`.
pub fn request(engine: &EngineHandle, prompt: &[TokenId], max_tokens: u32) -> Request {
    Request::plain(
        engine.next_request_id(),
        prompt,
        SamplingParams { max_tokens, ..SamplingParams::default() },
    )
}

/// A request of any kind.
pub fn random_request(engine: &EngineHandle, rng: &mut fastrand::Rng) -> Request {
    let n_shared = rng.usize(0..60);
    let n_own = rng.usize(1..20);
    let prompt: Vec<TokenId> =
        (0..n_shared as u32).map(|i| i % 50).chain((0..n_own).map(|_| rng.u32(0..50))).collect();
    let sampling = SamplingParams {
        max_tokens: rng.u32(0..40),
        seed: rng.u64(0..5),
        temperature: rng.u32(0..2) as f32,
        repetition_penalty: 1.0 + rng.u32(0..2) as f32,
        stop_token_ids: vec![rng.u32(0..50)],
        logprobs: rng.bool().then_some(2),
        prompt_logprobs: (rng.u32(0..4) == 0).then_some(1),
        ..SamplingParams::default()
    };
    let tenant = TenantId(["a", "b"][rng.usize(0..2)].into());
    let base = request(engine, &prompt, 0);
    Request { tenant, n: rng.u32(1..4), sampling: Arc::new(sampling), ..base }
}

/// What a stream brought.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub prompt: Vec<TokenReport>,
    pub sequences: Vec<(Vec<TokenReport>, Option<FinishReason>)>,
    pub failure: Option<EngineFailure>,
    pub n_events: usize,
}

impl Answer {
    pub fn of(request: &Request) -> Self {
        let sequences = (0..request.n).map(|_| (Vec::new(), None)).collect();
        Self { sequences, ..Self::default() }
    }

    pub fn note(&mut self, event: StreamEvent) {
        self.n_events += 1;
        match event {
            StreamEvent::Prompt { logprobs, .. } => self.prompt = logprobs,
            StreamEvent::Token { index, report } => self.sequences[index as usize].0.push(report),
            StreamEvent::Finished { index, reason, .. } => self.sequences[index as usize].1 = Some(reason),
            StreamEvent::Failed { error } => self.failure = Some(error),
        }
    }

    /// Reads a stream to its end.
    pub fn read(request: &Request, mut stream: TokenStream) -> Self {
        let mut answer = Self::of(request);
        while let Some(event) = stream.blocking_next() {
            answer.note(event);
        }
        answer
    }

    /// Checks that what came before it failed is, to the bit, the beginning of what the request must get.
    pub fn check_beginning(&self, request: &Request) {
        let expected = paper_answer(request, &CAPACITY);
        for (got, (tokens, _)) in self.sequences.iter().zip(&expected.sequences) {
            assert!(reports(tokens).starts_with(&got.0));
        }
    }

    /// Checks that it is, to the bit, what the request must get.
    pub fn check(&self, request: &Request) {
        assert_eq!(self.failure, None);
        let expected = paper_answer(request, &CAPACITY);
        assert_eq!(self.prompt, reports(&expected.prompt));
        for (got, (tokens, reason)) in self.sequences.iter().zip(&expected.sequences) {
            assert_eq!(got, &(reports(tokens), Some(*reason)));
        }
    }
}

/// The tokens as the engine reports them.
pub fn reports(tokens: &[PaperToken]) -> Vec<TokenReport> {
    tokens.iter().map(|token| TokenReport { chosen: token.chosen, top: token.top.clone() }).collect()
}
