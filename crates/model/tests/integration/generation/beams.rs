//! Beam search over the real scheduler and a real model: tokens, log-probabilities and order of the answers
//! are those of a search in its plainest form, which has the model compute every beam alone and from its
//! beginning.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::models;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{
    BeamSearch, EarlyStopping, FinishReason, Request, RequestId, SamplingParams, TokenId,
};
use throng_core::scheduling::batch::{StepOutput, TokenLogprob};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::Isa;
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_testkit::beam_reference::{PaperToken, reference_beam_search};

const VOCABULARY: usize = 64;
const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 200,
    kv_dtype: KvDtype::F16,
    max_batch_tokens: 256,
    max_batch_sequences: 16,
    max_sequence_tokens: None,
};

fn runner() -> ModelRunner<CpuBackend> {
    let model = models::narrow();
    let gguf = Gguf::parse(&model.gguf(Format::F32)).unwrap();
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
    let backend = CpuBackend::with_isa(1, Isa::best());
    let weights = Arc::new(DecoderWeights::load(&backend, &architecture, &gguf, &mut |_| {}).unwrap());
    ModelRunner::new(backend, Arc::new(architecture.config), weights, &LIMITS).unwrap()
}

type Answers = BTreeMap<(u64, u32), (Vec<PaperToken>, Option<FinishReason>)>;

/// Runs requests together, in a cache of so many blocks.
fn run(executor: &mut dyn Executor, n_blocks: u32, requests: Vec<Request>) -> (Answers, u64) {
    let capacity = ExecutorCapacity { n_blocks, ..executor.capacity() };
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity);
    let (mut answers, mut output) = (Answers::default(), StepOutput::default());
    let mut now = Timestamp::default();
    for request in requests {
        scheduler.submit(request, now).expect("it fits");
    }
    loop {
        let mut emit = |event: Event<'_>| match event {
            Event::Token { sequence, token } => {
                let token = PaperToken { chosen: token.chosen, top: token.top.to_vec() };
                answers.entry((sequence.request.0, sequence.index)).or_default().0.push(token);
            }
            Event::Finished { sequence, reason, .. } => {
                answers.entry((sequence.request.0, sequence.index)).or_default().1 = Some(reason);
            }
            Event::Failed { failure, .. } => panic!("{failure}"),
            _ => {}
        };
        let Some(step) = scheduler.plan(now, &mut emit) else { break };
        executor.execute(step.batch(), &mut output).expect("the step succeeds");
        now = now + Nanos(1_000_000);
        scheduler.complete(step, &output, now, &mut emit);
        scheduler.check_invariants().expect("the pool is in order");
    }
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.stats().used_blocks, 0);
    (answers, scheduler.stats().counters.preemptions)
}

fn request(id: u64, prompt: &[TokenId], n: u32, sampling: SamplingParams) -> Request {
    Request { n, ..Request::plain(RequestId(id), prompt, sampling) }
}

/// All tokens after `tokens`, the most likely first, computed alone.
fn next_tokens(executor: &mut dyn Executor, tokens: &[TokenId]) -> Vec<TokenLogprob> {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: 1,
        logprobs: Some(VOCABULARY as u32),
        ..Default::default()
    };
    let (answers, _) = run(executor, LIMITS.n_blocks, vec![request(0, tokens, 1, sampling)]);
    answers[&(0, 0)].0[0].top.clone()
}

fn searches() -> Vec<(Vec<TokenId>, u32, SamplingParams)> {
    let stops =
        [EarlyStopping::WhenFull, EarlyStopping::WhenUnlikelyToImprove, EarlyStopping::WhenUnableToImprove];
    let mut searches = Vec::new();
    for (i, width) in [1, 2, 3, 4, 8].into_iter().enumerate() {
        for (j, length_penalty) in [1.0, 0.0, 2.0, -0.5].into_iter().enumerate() {
            let search = BeamSearch { width, length_penalty, early_stopping: stops[(i + j) % 3] };
            let sampling = SamplingParams {
                max_tokens: 21 + i as u32,
                min_tokens: j as u32,
                eos_token_ids: if j == 3 { vec![] } else { vec![5, 17, 40] },
                stop_token_ids: vec![9],
                logprobs: (j != 1).then_some(j as u32),
                beams: Some(search),
                ..Default::default()
            };
            let prompt: Vec<TokenId> = (0..3 + 5 * i as u32 + 7 * j as u32).map(|t| t * 11 % 64).collect();
            searches.push((prompt, width.div_ceil(1 + j as u32 % 2), sampling));
        }
    }
    searches
}

#[test]
fn answers_are_those_of_a_plain_search() {
    let mut executor = runner();
    let (mut alone, mut n_ends) = (Vec::new(), 0);
    for (prompt, n, sampling) in searches() {
        let search = sampling.beams.expect("a search");
        let expected = reference_beam_search(&search, &sampling, 1000, |output| {
            next_tokens(&mut executor, &[&prompt, output].concat())
        });
        let (answers, _) =
            run(&mut executor, LIMITS.n_blocks, vec![request(0, &prompt, n, sampling.clone())]);
        assert_eq!(answers.len(), n as usize);
        for (beam, (tokens, reason)) in expected.iter().zip(answers.values()) {
            assert_eq!((tokens, *reason), (&beam.tokens, Some(beam.reason)), "{search:?}");
            if sampling.logprobs.is_some() {
                let logprob: f64 = tokens.iter().map(|token| f64::from(token.chosen.logprob)).sum();
                assert_eq!(logprob, beam.logprob);
            }
            n_ends += usize::from(beam.reason != FinishReason::Length);
        }
        assert!(expected.is_sorted_by(|a, b| a.score >= b.score));
        alone.push(answers);
    }
    assert!(n_ends > 20, "{n_ends} ends");

    // Together, first with room for all, then with hardly more than for one beam of the longest.
    for (n_blocks, may_preempt) in [(LIMITS.n_blocks, false), (12, true), (5, true)] {
        let requests =
            (0..).zip(searches()).map(|(id, (prompt, n, sampling))| request(id, &prompt, n, sampling));
        let (together, n_preempted) = run(&mut executor, n_blocks, requests.collect());
        assert!(n_preempted > 0 || !may_preempt);
        for (&(id, index), answer) in &together {
            assert_eq!(*answer, alone[id as usize][&(0, index)], "request {id}.{index} in {n_blocks} blocks");
        }
    }
}
