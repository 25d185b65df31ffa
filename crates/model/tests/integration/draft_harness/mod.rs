//! Requests of many kinds, run through the real scheduler, with what a client sees of them down to the bits.

use std::sync::Arc;

use crate::harness;
use fastrand::Rng;
use throng_core::constraint::TokenConstraint;
use throng_core::request::{Request, RequestId, SamplingParams, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Counters, Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_testkit::answers::Answers;
use throng_testkit::paper_constraint::PaperConstraint;

pub const N_REQUESTS: usize = 24;
pub const VOCABULARY: u32 = 64;
pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 256,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 256,
    max_batch_sequences: 12,
    max_sequence_tokens: None,
};

/// Runs all requests at once to their end.
pub fn run(
    executor: &mut dyn Executor,
    requests: &[Request],
    (config, n_blocks): (SchedulerConfig, u32),
    propose: &mut dyn FnMut(&ScheduledBatch, &mut StepOutput),
) -> (Answers, Counters) {
    let capacity = ExecutorCapacity { n_blocks, ..executor.capacity() };
    let mut scheduler = Scheduler::new(config, capacity);
    let (mut answers, mut output, mut now) =
        (Answers::default(), StepOutput::default(), Timestamp::default());
    for request in requests {
        scheduler.submit(request.clone(), now).expect("every request fits");
    }
    let mut emit = |event: Event<'_>| answers.note(&event);
    while let Some(step) = scheduler.plan(now, &mut emit) {
        executor.execute(step.batch(), &mut output).expect("the step succeeds");
        propose(step.batch(), &mut output);
        now = now + Nanos::from_ms(1);
        scheduler.complete(step, &output, now, &mut emit);
        scheduler.check_invariants().expect("the books are in order");
    }
    assert!(scheduler.is_idle(), "nothing to do although requests wait");
    (answers, scheduler.stats().counters)
}

pub fn requests(rng: &mut Rng) -> Vec<Request> {
    let shared: Vec<TokenId> = (0..20).map(|_| rng.u32(..VOCABULARY)).collect();
    let request = |i: usize| {
        let mut prompt = if i.is_multiple_of(2) { shared.clone() } else { Vec::new() };
        prompt.extend((0..1 + i % 7).map(|_| rng.u32(..VOCABULARY)));
        let constraint = PaperConstraint {
            vocabulary_size: VOCABULARY,
            seed: i as u64,
            // A forced token could be a bad word of those with penalties.
            one_in_forced: if i % 4 == 2 { 0 } else { [0, 1, 2][i / 3 % 3] },
            fails_after: None,
        };
        Request {
            n: if i % 8 == 3 { 2 } else { 1 },
            constraint: (i % 3 == 1).then(|| Arc::new(constraint) as Arc<dyn TokenConstraint>),
            ..Request::plain(RequestId(i as u64), prompt, sampling(i, rng))
        }
    };
    (0..N_REQUESTS).map(request).collect()
}

fn sampling(i: usize, rng: &mut Rng) -> SamplingParams {
    let plain = SamplingParams {
        seed: rng.u64(..),
        max_tokens: 12 + (i * 5 % 28) as u32,
        stop_token_ids: vec![7],
        logprobs: (i % 4 != 3).then_some((i % 3) as u32),
        prompt_logprobs: (i % 6 == 1).then_some(2),
        // Those with penalties.
        min_tokens: if i % 4 == 2 { 5 } else { 0 },
        ..Default::default()
    };
    harness::with_kind(i, plain)
}

/// No drafts but those of the executor.
pub fn nothing_more(_: &ScheduledBatch, _: &mut StepOutput) {}
