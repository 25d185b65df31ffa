//! A recorded load, stored and read again, leads an engine whose tokens are made of names of blocks through
//! the same steps.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::engine::{
    Effect, EngineConfig, EngineCore, Epoch, Input, LoadRecorder, RecordedEvent, RecordedLoad,
    RecordedRequest, StepDone,
};
use throng_core::request::{Request, RequestId, SamplingParams, SequenceId, TenantId, TokenId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, ScheduledBatch, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::{PaperExecutor, paper_answer};

const STEP: Nanos = Nanos::from_ms(1);
const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 40,
    max_batch_tokens: 64,
    max_batch_sequences: 4,
    max_sequence_tokens: 400,
    vocabulary_size: 50_000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
};

/// Sequences of a step: where their new tokens begin, and how many there are.
type Shape = Vec<(SequenceId, u32, usize)>;

/// The steps of an engine that gets these inputs, and its load.
fn run(mut inputs: VecDeque<(Timestamp, Input)>, executor: &mut dyn Executor) -> (Vec<Shape>, RecordedLoad) {
    let scheduler = SchedulerConfig { speculation: SpeculationMethod::None, ..SchedulerConfig::default() };
    let config = EngineConfig { scheduler, ..EngineConfig::default() };
    let mut core = EngineCore::new(config, executor.capacity());
    let (mut recorder, mut shapes) = (LoadRecorder::default(), Vec::new());
    let mut in_flight: Option<(Timestamp, Epoch, Arc<ScheduledBatch>)> = None;
    loop {
        let arrival = inputs.front().map(|(at, _)| *at);
        let done = in_flight.as_ref().map(|(at, ..)| *at);
        let Some(now) = arrival.into_iter().chain(done).min() else { break };
        let input = if done == Some(now) {
            let (_, epoch, batch) = in_flight.take().expect("a step");
            let mut output = StepOutput::default();
            executor.collect(&batch, &mut output).expect("it works");
            Input::StepDone(StepDone { epoch, output, executing: STEP, result: Ok(()) })
        } else {
            inputs.pop_front().expect("an input").1
        };
        for input in [input, Input::Tick] {
            let mut effects = Vec::new();
            core.apply(&input, now, &mut effects);
            recorder.note(&input, now, &effects);
            for effect in effects {
                if let Effect::Execute { epoch, batch } = effect {
                    executor.submit(&batch).expect("it works");
                    shapes.push(batch.sequences().iter().map(|s| (s.id, s.start, s.n_tokens())).collect());
                    in_flight = Some((now + STEP, epoch, batch));
                }
            }
        }
    }
    (shapes, recorder.finish())
}

/// Chooses the tokens that recorded requests had.
struct Recorded(Vec<RecordedRequest>);

impl Executor for Recorded {
    fn capacity(&self) -> ExecutorCapacity {
        CAPACITY
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        for scheduled in batch.sequences() {
            output.begin_sequence();
            let SequenceId { request, index } = scheduled.id;
            let recorded = self.0.iter().find(|recorded| recorded.id == request.0).expect("it was recorded");
            if scheduled.sample {
                let position = scheduled.start + scheduled.n_tokens() as u32;
                let token = recorded.token(index, position, CAPACITY.vocabulary_size);
                output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
            }
        }
        Ok(())
    }
}

/// Conversations of a few tenants, each turn with all that was said before, some of which end early or are
/// given up.
fn conversations(rng: &mut Rng) -> VecDeque<(Timestamp, Input)> {
    let mut inputs = Vec::new();
    let mut conversations: Vec<Vec<TokenId>> = vec![vec![]; 8];
    for id in 0..120_u64 {
        let conversation_idx = if id < 3 { id as usize } else { rng.usize(..8) };
        let prompt = &mut conversations[conversation_idx];
        if prompt.len() > 300 {
            prompt.clear();
        }
        if prompt.is_empty() {
            // A system prompt of all.
            prompt.extend((0..2 * BLOCK_TOKENS as u32 + 5).map(|i| 40_000 + i));
        }
        prompt.extend((0..rng.u32(1..30)).map(|_| rng.u32(..CAPACITY.vocabulary_size)));
        let sampling = SamplingParams {
            temperature: 0.0,
            max_tokens: rng.u32(1..40),
            eos_token_ids: (1..2_000).collect(),
            ..SamplingParams::default()
        };
        let request = Request {
            tenant: TenantId(["a", "b", "c"][conversation_idx % 3].into()),
            n: if rng.u32(..6) == 0 { 2 } else { 1 },
            ..Request::plain(RequestId(id), prompt.clone(), sampling)
        };
        let answer = paper_answer(&request, &CAPACITY);
        prompt.extend(answer.sequences[0].0.iter().map(|token| token.chosen.token));
        // Odd times, so that nothing comes at the end of a step.
        let arrived = Timestamp::from_ns(id * 15_000_000 + rng.u64(..5_000_000) * 2 + 1);
        if rng.u32(..10) == 0 {
            inputs.push((arrived + Nanos(rng.u64(..5_000_000) * 2), Input::Abort(request.id)));
        }
        inputs.push((arrived, Input::Submit { request, arrived }));
    }
    inputs.sort_by_key(|(at, _)| *at);
    inputs.into()
}

#[test]
fn a_recorded_load_leads_to_the_same_steps() {
    for seed in 0..10 {
        let (shapes, load) = run(conversations(&mut Rng::with_seed(seed)), &mut PaperExecutor::new(CAPACITY));
        let stored = serde_json::to_string(&load).expect("plain data");
        let read: RecordedLoad = serde_json::from_str(&stored).expect("what was written");
        assert_eq!(read, load);
        let (mut inputs, mut requests) = (VecDeque::new(), Vec::new());
        for recorded in read.inputs {
            let now = Timestamp::from_ns(recorded.at_ns);
            let input = match recorded.event {
                RecordedEvent::Submit(recorded) => {
                    let request = recorded.to_request(CAPACITY.vocabulary_size);
                    requests.push(recorded);
                    Input::Submit { request, arrived: now }
                }
                RecordedEvent::Abort(request) => Input::Abort(RequestId(request)),
                other => panic!("{other:?} was not among the inputs"),
            };
            inputs.push_back((now, input));
        }
        let (again, _) = run(inputs, &mut Recorded(requests));
        assert!(shapes.len() > 500, "{} steps", shapes.len());
        let n_hits = shapes.iter().flatten().filter(|(_, start, n)| *start > 0 && *n > 1).count();
        assert!(n_hits > 30, "{n_hits} prompts went on from a cached prefix");
        let differs = shapes.iter().zip(&again).position(|(one, other)| one != other);
        assert!(shapes.len() == again.len() && differs.is_none(), "seed {seed}: step {differs:?} differs");
    }
}

/// Prompts shorter than a block have no names: nothing in the record depends on their tokens.
#[test]
fn a_record_has_no_token_ids() {
    let stored = |token: TokenId| {
        let sampling = SamplingParams { max_tokens: 3, temperature: 0.0, ..SamplingParams::default() };
        let request = Request::plain(RequestId(1), vec![token; 9], sampling);
        let now = Timestamp::from_ns(1);
        let inputs = [(now, Input::Submit { request, arrived: now })];
        serde_json::to_string(&run(inputs.into(), &mut PaperExecutor::new(CAPACITY)).1).expect("plain data")
    };
    assert_eq!(stored(31_337), stored(4_711));
    let expected = r#"{"inputs":[{"at_ns":1,"event":{"submit":{"id":1,"tenant":0,"priority":0,"adapter":null,"prompt_tokens":9,"prompt_blocks":[],"max_tokens":3,"outputs":[{"n_tokens":3,"stops":false,"blocks":[]}]}}}]}"#;
    assert_eq!(stored(1), expected);
}
