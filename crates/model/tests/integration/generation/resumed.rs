//! Resumed requests on a real model: tokens and log-probabilities of a request that goes on from output
//! generated elsewhere have the bits of the request that was never interrupted, whichever rules of sampling
//! read that output.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::models;
use fastrand::Rng;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{Request, RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_testkit::answers::{Answers, Report};

fn tiny_runner() -> Box<dyn Executor> {
    let model = models::narrow();
    let gguf = Gguf::parse(&model.gguf(Format::Q8_0)).expect("a valid file");
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).expect("a known architecture");
    let weights = DecoderWeights::load(&CpuBackend::new(1), &architecture, &gguf, &mut |_| {});
    let weights = Arc::new(weights.expect("all tensors are there"));
    let limits = RunnerLimits {
        n_blocks: 400,
        kv_dtype: KvDtype::F16,
        max_batch_tokens: 128,
        max_batch_sequences: 64,
        max_sequence_tokens: None,
    };
    let config = Arc::new(architecture.config);
    Box::new(ModelRunner::new(CpuBackend::new(1), config, weights, &limits).expect("it fits"))
}

fn random_request(rng: &mut Rng, id: u64) -> Request {
    let sampling = SamplingParams {
        temperature: if rng.bool() { 0.0 } else { 1.2 },
        seed: rng.u64(..),
        max_tokens: rng.u32(20..40),
        min_tokens: rng.u32(0..20),
        eos_token_ids: (0..8).collect(),
        repetition_penalty: if rng.bool() { 1.3 } else { 1.0 },
        presence_penalty: if rng.bool() { 0.5 } else { 0.0 },
        frequency_penalty: if rng.bool() { 0.3 } else { 0.0 },
        bad_words: if rng.bool() { vec![vec![9], vec![11, 12]] } else { vec![] },
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    Request {
        n: rng.u32(1..4),
        ..Request::plain(
            RequestId(id),
            (0..rng.usize(1..60)).map(|_| rng.u32(..64)).collect::<Vec<_>>(),
            sampling,
        )
    }
}

fn run(executor: &mut dyn Executor, requests: &[Request]) -> BTreeMap<SequenceId, Vec<Report>> {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), executor.capacity());
    let mut now = Timestamp::default();
    for request in requests {
        scheduler.submit(request.clone(), now).expect("every request fits");
    }
    let mut answers = Answers::default();
    let mut emit = |event: Event<'_>| answers.note(&event);
    let mut output = StepOutput::default();
    while let Some(step) = scheduler.plan(now, &mut emit) {
        executor.execute(step.batch(), &mut output).expect("the step succeeds");
        now = now + Nanos::from_ms(5);
        scheduler.complete(step, &output, now, &mut emit);
    }
    assert!(scheduler.is_idle());
    answers.outputs
}

#[test]
fn the_rest_of_an_answer_has_the_same_bits() {
    let (mut first, mut second) = (tiny_runner(), tiny_runner());
    let mut rng = Rng::with_seed(15);
    let requests: Vec<Request> = (0..24).map(|id| random_request(&mut rng, id)).collect();
    let whole = run(&mut *first, &requests);
    for round in 0..4 {
        let mut expected = BTreeMap::new();
        let resumed: Vec<Request> = requests
            .iter()
            .map(|request| {
                let resume = |index| {
                    let sequence = SequenceId { request: request.id, index };
                    let reports = &whole[&sequence];
                    let n_so_far = rng.usize(..reports.len());
                    expected.insert(sequence, reports[n_so_far..].to_vec());
                    Some(reports[..n_so_far].iter().map(|report| report[0].0).collect())
                };
                Request { outputs_so_far: (0..request.n).map(resume).collect(), ..request.clone() }
            })
            .collect();
        assert!(run(&mut *second, &resumed) == expected, "round {round}");
    }
}
