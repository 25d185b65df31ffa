//! Resumed requests: a request that goes on from output which another scheduler generated gets the same
//! tokens and ends as the request that was never interrupted. Random requests, interrupted at random points;
//! prints its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{
    BeamSearch, EarlyStopping, FinishReason, Priority, Request, RequestId, SamplingParams, TenantId, TokenId,
};
use throng_core::scheduling::admission::Refusal;
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::{PaperExecutor, PaperToken, paper_answer};

const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 60,
    max_batch_tokens: 48,
    max_batch_sequences: 8,
    max_sequence_tokens: 120,
    vocabulary_size: 50,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

/// What a continuation was reported to have done.
#[derive(Debug, Default, PartialEq)]
struct Reported {
    tokens: Vec<PaperToken>,
    end: Option<(FinishReason, u32)>,
}

fn tokens(rng: &mut Rng, n: usize) -> Vec<TokenId> {
    (0..n).map(|_| rng.u32(0..CAPACITY.vocabulary_size)).collect()
}

fn random_request(rng: &mut Rng, id: u64) -> Request {
    let max_tokens = rng.u32(1..60);
    let n_prompt = rng.usize(1..90);
    let n = rng.u32(1..4);
    let search = BeamSearch {
        width: rng.u32(n..6),
        length_penalty: 1.0,
        early_stopping: EarlyStopping::WhenUnableToImprove,
    };
    let sampling = SamplingParams {
        beams: (rng.u8(0..5) == 0).then_some(search),
        temperature: if rng.bool() { 0.0 } else { 1.0 },
        seed: rng.u64(0..4),
        max_tokens,
        min_tokens: rng.u32(0..=max_tokens),
        eos_token_ids: tokens(rng, 1),
        stop_token_ids: if rng.bool() { tokens(rng, 2) } else { vec![] },
        repetition_penalty: if rng.bool() { 1.1 } else { 1.0 },
        bad_words: if rng.bool() { vec![tokens(rng, 1), tokens(rng, 2)] } else { vec![] },
        logprobs: rng.bool().then_some(2),
        prompt_logprobs: rng.bool().then_some(1),
        ..SamplingParams::default()
    };
    Request {
        id: RequestId(id),
        tenant: TenantId::anonymous(),
        cache_salt: None,
        cache_marks: Vec::new(),
        // A common beginning, so that blocks of some are found by others.
        prompt: (0..n_prompt as TokenId / 2)
            .map(|i| i % 7)
            .chain(tokens(rng, n_prompt.div_ceil(2)))
            .collect(),
        media: None,
        outputs_so_far: Vec::new(),
        n,
        priority: Priority::default(),
        sampling: Arc::new(sampling),
        constraint: None,
        adapter: None,
        holder: None,
    }
}

/// Runs all requests to their ends and returns what was reported of each continuation.
fn run(requests: &[Request]) -> BTreeMap<(u64, u32), Reported> {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), CAPACITY);
    let mut executor = PaperExecutor::new(CAPACITY);
    let mut now = Timestamp::default();
    for request in requests {
        scheduler.submit(request.clone(), now).expect("the queue has room");
    }
    let mut reported: BTreeMap<(u64, u32), Reported> = BTreeMap::new();
    let mut emit = |event: Event<'_>| match event {
        Event::Token { sequence, token } => {
            let of_sequence = reported.entry((sequence.request.0, sequence.index)).or_default();
            assert_eq!(of_sequence.end, None, "a token after the end");
            of_sequence.tokens.push(PaperToken { chosen: token.chosen, top: token.top.to_vec() });
        }
        Event::Finished { sequence, reason, timeline } => {
            let of_sequence = reported.entry((sequence.request.0, sequence.index)).or_default();
            assert_eq!(of_sequence.end.replace((reason, timeline.output_tokens)), None, "ended twice");
        }
        Event::PromptDone { request, .. } | Event::PromptToken { request, .. } => {
            let resumed = requests.iter().any(|r| r.id == request && r.is_resumed());
            assert!(!resumed, "the prompt of {request:?} was reported before");
        }
        Event::Failed { request, failure } => panic!("{request:?}: {failure}"),
        Event::Dequeued { .. } => {}
    };
    let mut output = StepOutput::default();
    while let Some(step) = scheduler.plan(now, &mut emit) {
        executor.execute(step.batch(), &mut output).expect("paper does not fail");
        now = now + Nanos::from_ms(3);
        scheduler.complete(step, &output, now, &mut emit);
        scheduler.check_invariants().expect("the invariants hold");
    }
    assert!(scheduler.is_idle());
    reported
}

#[test]
fn a_resumed_request_gets_the_rest_of_the_same_answer() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let (mut requests, mut expected) = (Vec::new(), BTreeMap::new());
        for id in 0..rng.u64(1..12) {
            let mut request = random_request(&mut rng, id);
            let answer = paper_answer(&request, &CAPACITY);
            let is_resumed = rng.u8(0..4) > 0;
            let n_ended = if is_resumed { rng.usize(0..answer.sequences.len()) } else { 0 };
            for (index, (whole, reason)) in answer.sequences.into_iter().enumerate() {
                let n_whole = whole.len() as u32;
                if !is_resumed {
                    let end = Some((reason, n_whole));
                    expected.insert((id, index as u32), Reported { tokens: whole, end });
                } else if index < n_ended {
                    request.outputs_so_far.push(None);
                } else {
                    // Up to the whole output: then only the end is still to be reported.
                    let n_so_far = rng.usize(0..=whole.len());
                    let so_far = whole[..n_so_far].iter().map(|token| token.chosen.token).collect();
                    request.outputs_so_far.push(Some(so_far));
                    let tokens = whole[n_so_far..].to_vec();
                    expected.insert((id, index as u32), Reported { tokens, end: Some((reason, n_whole)) });
                }
            }
            requests.push(request);
        }
        assert_eq!(run(&requests), expected, "seed {seed}");
    }
}

#[test]
fn the_output_so_far_counts_at_admission() {
    let mut scheduler =
        Scheduler::new(SchedulerConfig { max_queued_tokens: 100, ..Default::default() }, CAPACITY);
    let request = |id, n_prompt, outputs: &[Option<&[TokenId]>]| Request {
        id: RequestId(id),
        prompt: vec![1; n_prompt].into(),
        outputs_so_far: outputs.iter().map(|output| output.map(Arc::from)).collect(),
        n: outputs.len() as u32,
        sampling: Arc::new(SamplingParams { max_tokens: 100, ..SamplingParams::default() }),
        ..random_request(&mut Rng::with_seed(0), 0)
    };
    let mut submit = |request: Request| scheduler.submit(request, Timestamp::default());
    assert_eq!(submit(request(0, 5, &[None, None])), Err(Refusal::Empty));
    let unknown = Refusal::InvalidToken { token: 50, vocabulary_size: 50 };
    assert_eq!(submit(request(0, 5, &[None, Some(&[1, 50])])), Err(unknown));
    assert_eq!(
        submit(request(0, 60, &[Some(&[1; 61])])),
        Err(Refusal::TooLong { n_tokens: 121, limit: 120 })
    );
    assert_eq!(submit(request(0, 60, &[Some(&[1; 10]), Some(&[1; 20])])), Ok(()));
    assert_eq!(scheduler.stats().queued_tokens, 90);
    let full = Refusal::QueueFull { n_requests: 1, n_tokens: 90 };
    let mut submit = |request: Request| scheduler.submit(request, Timestamp::default());
    assert_eq!(submit(request(1, 6, &[Some(&[1; 5])])), Err(full));
    assert_eq!(submit(request(1, 6, &[Some(&[1; 4]), None])), Ok(()));
}
