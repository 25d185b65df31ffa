//! The example backend, which is written outside the model crate: it passes the backend suite, the golden
//! models run on it, and what it adds to the required operations is used as the interface says.

use std::sync::Arc;

use throng_core::request::{RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, DeviceMemory, SampledRows, SamplingRow, WantedToken};
use throng_model::batch_input::{BatchInput, CarriedToken, QuerySpan};
use throng_model::decoder::{Decoder, DecoderLimits};
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::runner::RunnerLimits;
use throng_model::sampler::SamplingInput;
use throng_testkit::backend_suite;
use throng_testkit::example_backend::ExampleBackend;
use throng_testkit::tiny_model::TinyModel;

use crate::golden::{Golden, LIMITS, OPTIONS, golden, run};

#[test]
fn it_passes_the_suite() {
    backend_suite::check(|_| ExampleBackend::default());
}

#[test]
fn golden_logits_and_tokens_are_those_of_transformers() {
    for golden in golden() {
        golden.check(ExampleBackend::default());
    }
}

#[test]
fn what_the_device_cannot_choose_the_host_chooses() {
    let Golden { model, prompt, .. } = golden().swap_remove(0);
    let sampled = |logprobs| {
        let mut runner = model.runner_with(ExampleBackend::default(), &LIMITS).unwrap();
        let sampling = SamplingParams { temperature: 0.9, seed: 3, logprobs, ..Default::default() };
        run(&mut runner, &prompt, 20, &Arc::new(sampling), |_| {})
    };
    assert_eq!(sampled(None), sampled(Some(1)));
}

#[test]
fn drafts_are_verified_by_tokens_that_the_device_chooses() {
    let Golden { model, prompt, greedy, .. } = golden().swap_remove(0);
    let mut runner = model.runner_with(ExampleBackend::default(), &LIMITS).unwrap();
    let sampling = Arc::new(SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() });
    assert_eq!(run(&mut runner, &prompt, 1, &sampling, |_| {}), greedy[..1]);
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    let wrong = greedy[2].wrapping_add(1) % model.config.vocabulary_size as TokenId;
    batch.push(NewSequence {
        id: SequenceId { request: RequestId(1), index: 0 },
        start: prompt.len() as u32,
        n_prompt: prompt.len() as u32,
        next_prompt_token: None,
        sample: true,
        sampling,
        constraint: None,
        adapter: None,
        tokens: &greedy[..1],
        drafts: &[greedy[1], wrong, greedy[3]],
        blocks: &[5, 2, 7, 0, 1, 6, 4, 3].map(BlockId),
        history: &[],
        output: &[],
    });
    runner.execute(&batch, &mut output).unwrap();
    let tokens: Vec<TokenId> = output.sampled(0).map(|token| token.chosen.token).collect();
    assert_eq!(
        tokens,
        greedy[1..3],
        "one draft is right, and its successor is chosen instead of the wrong one"
    );
}

#[test]
fn every_row_parallel_product_is_summed_over_devices_once_and_in_time() {
    let tiny = TinyModel { architecture: "qwen3moe", experts: (4, 2), ..TinyModel::default() };
    let experts = load_bytes("experts", &tiny.gguf(Format::F32), &OPTIONS, &mut |_| {}).unwrap();
    let models = golden().into_iter().map(|golden| golden.model).chain([experts]);
    for model in models {
        let prompt: Vec<TokenId> = (1..20).collect();
        let logprobs = |backend: ExampleBackend| {
            let mut runner = model.runner_with(backend, &LIMITS).unwrap();
            let sampling =
                SamplingParams { logprobs: Some(20), prompt_logprobs: Some(20), ..Default::default() };
            let mut bits = Vec::new();
            run(&mut runner, &prompt, 3, &Arc::new(sampling), |output| {
                let reports = output.prompt(0).chain(output.sampled(0));
                bits.extend(reports.flat_map(|report| report.top.iter().map(|top| top.logprob.to_bits())));
            });
            bits
        };
        let halved = logprobs(ExampleBackend::with_halved_partial_products());
        assert!(halved == logprobs(ExampleBackend::default()), "{}", model.name);
    }
}

#[test]
fn a_step_reads_the_token_of_the_one_before_while_that_is_in_flight() {
    let Golden { model, prompt, greedy, .. } = golden().swap_remove(0);
    let mut backend = ExampleBackend::default();
    let weights = model.weights_on(&backend, &mut |_| {}).unwrap();
    let limits = DecoderLimits {
        max_tokens: 64,
        max_logit_rows: 1,
        max_sequence_tokens: 128,
        n_positions: 128,
        n_state_slots: 0,
    };
    let mut decoder = Decoder::new(&backend, Arc::clone(&model.config), weights, &limits).unwrap();
    let mut cache = backend.kv_cache(&model.kv_layout(KvDtype::F32, 8)).unwrap();
    let params = SamplingParams { temperature: 0.0, ..Default::default() };
    let (mut tickets, mut sampled, mut most_in_flight) = (Vec::new(), SampledRows::default(), 0);
    for step in 0..greedy.len() {
        let start = if step == 0 { 0 } else { prompt.len() + step - 1 };
        // After the prompt, the host knows no token that it gives to the device.
        let tokens = if step == 0 { prompt.clone() } else { vec![0] };
        let input = BatchInput {
            positions: (start as u32..).take(tokens.len()).collect(),
            spans: vec![QuerySpan { first_row: 0, n_rows: tokens.len(), start, first_block: 0 }],
            blocks: (0..8).collect(),
            logit_tokens: vec![tokens.len() as u32 - 1],
            carried: (step > 0).then_some(CarriedToken { token_idx: 0, chosen_idx: 0 }).into_iter().collect(),
            tokens,
            ..BatchInput::default()
        };
        decoder.forward(&mut backend, &mut cache, &input);
        let logits = decoder.logits(&mut backend, 0..1);
        let position = (prompt.len() + step) as u32;
        let row = SamplingInput {
            params: &params,
            mask: None,
            history: &[],
            n_prompt: prompt.len() as u32,
            sequence_index: 0,
            position,
        };
        let row = SamplingRow { row_idx: 0, token: WantedToken::Sampled(row), logprobs: None };
        assert!(backend.samples(&row));
        backend.sample(logits, &mut std::iter::once(row));
        tickets.push(backend.submit());
        most_in_flight = most_in_flight.max(tickets.len());
        if tickets.len() == 2 {
            backend.collect(tickets.remove(0), &mut sampled).unwrap();
        }
    }
    backend.collect(tickets.remove(0), &mut sampled).unwrap();
    let chosen: Vec<TokenId> = sampled.iter().map(|token| token.chosen.token).collect();
    assert_eq!((most_in_flight, chosen), (2, greedy));
}

/// Sequences of one step, each with the sampling parameters that decide who answers it.
#[test]
fn device_and_host_share_the_rows_of_a_step() {
    let Golden { model, prompt, .. } = golden().swap_remove(0);
    let greedy = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
    let drawn = SamplingParams { temperature: 0.9, seed: 5, ..greedy.clone() };
    let reported = SamplingParams { logprobs: Some(3), prompt_logprobs: Some(2), ..greedy.clone() };
    let penalized = SamplingParams { repetition_penalty: 1.3, ..reported.clone() };
    let all = [greedy.clone(), drawn, reported, penalized, greedy].map(Arc::new);
    let n = 5.min(prompt.len());
    let step = |of: &[Arc<SamplingParams>], backend: ExampleBackend| {
        let limits = RunnerLimits { max_batch_sequences: 64, ..LIMITS };
        let mut runner = model.runner_with(backend, &limits).unwrap();
        let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
        for (index, sampling) in of.iter().enumerate() {
            batch.push(NewSequence {
                id: SequenceId { request: RequestId(1), index: index as u32 },
                start: 0,
                n_prompt: n as u32,
                next_prompt_token: None,
                sample: true,
                sampling: Arc::clone(sampling),
                constraint: None,
                adapter: None,
                tokens: &prompt[..n],
                drafts: &[],
                blocks: &[BlockId(index as u32)],
                history: if sampling.reads_history() { &prompt[..n] } else { &[] },
                output: &[],
            });
        }
        runner.execute(&batch, &mut output).unwrap();
        let answer = |sequence_idx| {
            assert_eq!(output.error(sequence_idx), None);
            let reports = output.prompt(sequence_idx).chain(output.sampled(sequence_idx));
            let bits = |token: &TokenLogprob| (token.token, token.logprob.to_bits(), token.rank);
            reports
                .map(|report| (bits(&report.chosen), report.top.iter().map(bits).collect::<Vec<_>>()))
                .collect()
        };
        (0..of.len()).map(answer).collect::<Vec<Vec<_>>>()
    };
    let on_host = step(&all, ExampleBackend::default().without_sampling());
    assert!(on_host[2].len() == n && on_host[2][0].1.len() == 2 && on_host[2][n - 1].1.len() == 3);
    assert_eq!(step(&all, ExampleBackend::default()), on_host, "rows of both in one step");
    for (sequence_idx, sampling) in all.iter().enumerate() {
        let alone = step(std::slice::from_ref(sampling), ExampleBackend::default());
        if sequence_idx != 1 {
            assert_eq!(alone[0], on_host[sequence_idx], "sequence {sequence_idx} in a step of its own");
        }
    }
}
