//! The example backend, which is written outside the model crate: it passes the backend suite, the golden
//! models run on it, and what it adds to the required operations is used as the interface says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use throng_core::batch::{BlockId, MemorySlot, NewSequence, ScheduledBatch, StateShare, StepOutput};
use throng_core::executor::Executor;
use throng_core::request::{RequestId, SamplingParams, SequenceId, TokenId};
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, DeviceMemory};
use throng_model::batch_input::{BatchInput, CarriedToken, QuerySpan};
use throng_model::decoder::{Decoder, DecoderLimits};
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::runner::RunnerLimits;
use throng_model::sampler::SamplingInput;
use throng_model::{LoadOptions, LoadedModel, load};
use throng_testkit::backend_suite;
use throng_testkit::example_backend::ExampleBackend;
use throng_testkit::tiny_model::TinyModel;

const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 8,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 64,
    max_batch_sequences: 1,
    max_sequence_tokens: None,
};

fn options() -> LoadOptions {
    LoadOptions { prepare: None, n_threads: 1, quantize: None }
}

/// A golden model with what transformers gives for a prompt.
struct Golden {
    model: LoadedModel,
    prompt: Vec<TokenId>,
    greedy: Vec<TokenId>,
    /// `[prompt, vocabulary]`.
    logits: Vec<f32>,
}

fn golden() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> =
        folders.filter(|path| path.join("expected.safetensors").exists()).collect();
    folders.sort();
    assert!(folders.len() >= 29);
    let open = |folder: PathBuf| {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name| -> Vec<TokenId> {
            let data = tensors.tensor(name).unwrap().data().to_vec();
            data.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as TokenId).collect()
        };
        let logits = tensors.tensor("logits").unwrap().data().to_vec();
        let logits = logits.as_chunks::<4>().0.iter().map(|logit| f32::from_le_bytes(*logit)).collect();
        let model = load(&folder, &options(), &mut |_| {}).unwrap();
        Golden { model, prompt: ids("input_ids"), greedy: ids("greedy"), logits }
    };
    folders.into_iter().map(open).collect()
}

/// One sequence run by hand, in chunks of the prompt and then token by token.
fn run(
    executor: &mut dyn Executor,
    prompt: &[TokenId],
    n_output: usize,
    sampling: &Arc<SamplingParams>,
    mut report: impl FnMut(&StepOutput),
) -> Vec<TokenId> {
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    let (mut tokens, mut start) = (prompt.to_vec(), 0);
    while tokens.len() < prompt.len() + n_output {
        let end = tokens.len().min(start + 29);
        batch.clear();
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(1), index: 0 },
            start: start as u32,
            n_prompt: prompt.len() as u32,
            next_prompt_token: tokens.get(end).copied(),
            sample: end == tokens.len(),
            sampling: Arc::clone(sampling),
            tokens: &tokens[start..end],
            blocks: &[5, 2, 7, 0, 1, 6, 4, 3].map(BlockId),
            history: &[],
            output: &[],
            drafts: &[],
            constraint: None,
            adapter: None,
        });
        if executor.capacity().n_state_slots > 0 {
            let (from, to) = ((start > 0).then_some(MemorySlot(1)), MemorySlot(1));
            batch.set_state(StateShare { from, to, saves: [None; 2] });
        }
        executor.execute(&batch, &mut output).unwrap();
        assert_eq!(output.error(0), None);
        report(&output);
        start = end;
        tokens.extend(output.sampled(0).map(|token| token.chosen.token));
    }
    tokens.split_off(prompt.len())
}

#[test]
fn it_passes_the_suite() {
    backend_suite::check(|_| ExampleBackend::default());
}

#[test]
fn golden_logits_and_tokens_are_those_of_transformers() {
    for Golden { model, prompt, greedy, logits } in golden() {
        let vocabulary = model.config.vocabulary_size;
        let all = Some(vocabulary as u32);
        let sampling =
            SamplingParams { temperature: 0.0, logprobs: all, prompt_logprobs: all, ..Default::default() };
        let mut runner = model.runner_with(ExampleBackend::default(), &LIMITS).unwrap();
        let mut worst = 0.0_f64;
        let mut expected = logits.chunks_exact(vocabulary);
        run(&mut runner, &prompt, 1, &Arc::new(sampling), |output| {
            for report in output.prompt(0).chain(output.sampled(0)) {
                let logits = expected.next().unwrap();
                let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                for top in report.top {
                    let expected = f64::from(logits[top.token as usize]) - sum.ln();
                    worst = worst.max((f64::from(top.logprob) - expected).abs());
                }
            }
        });
        assert!(expected.next().is_none() && worst < 2e-4, "{}: off by {worst:.2e}", model.name);
        // Greedy without reports: the device chooses.
        let sampling = Arc::new(SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() });
        let output = run(&mut runner, &prompt, greedy.len(), &sampling, |_| {});
        assert_eq!(output, greedy, "{}", model.name);
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
    let experts = load_bytes("experts", &tiny.gguf(Format::F32), &options(), &mut |_| {}).unwrap();
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
    let (mut tickets, mut chosen, mut most_in_flight) = (Vec::new(), Vec::new(), 0);
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
            states: Vec::new(),
            tokens,
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
        assert!(backend.choose(logits, &mut std::iter::once(row)));
        tickets.push(backend.submit());
        most_in_flight = most_in_flight.max(tickets.len());
        if tickets.len() == 2 {
            backend.collect(tickets.remove(0), &mut chosen).unwrap();
        }
    }
    backend.collect(tickets.remove(0), &mut chosen).unwrap();
    assert_eq!((most_in_flight, chosen), (2, greedy));
}
