//! Edge cases of the runner: a fault of one sequence does not affect others, and prompts with all their
//! log-probabilities are reported in pieces.

use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// The token whose embedding is NaN.
const POISONED: u32 = 5;

/// A tiny model in which one token's embedding is NaN.
fn poisoned_model() -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let mut bytes = TinyModel::default().gguf(Format::F32);
    let table = {
        let gguf = Gguf::parse(&bytes).unwrap();
        gguf.tensor("token_embd.weight").unwrap().data[..64].to_vec()
    };
    let start = bytes.windows(table.len()).position(|window| window == table).unwrap();
    let element = start + POISONED as usize * 256 * 4;
    bytes[element..element + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap()
}

fn options(backend: BackendKind) -> RunnerOptions {
    RunnerOptions { backend, n_threads: 2, limits: LIMITS }
}

/// One step with a sequence for each of these, each in its own block.
fn step(executor: &mut dyn Executor, sequences: &[(Vec<u32>, SamplingParams)]) -> StepOutput {
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    for (i, (tokens, sampling)) in sequences.iter().enumerate() {
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(i as u64), index: 0 },
            start: 0,
            n_prompt: tokens.len() as u32,
            next_prompt_token: None,
            sample: true,
            sampling: Arc::new(sampling.clone()),
            constraint: None,
            adapter: None,
            tokens,
            drafts: &[],
            blocks: &[BlockId(i as u32)],
            history: tokens,
            output: &[],
        });
    }
    executor.execute(&batch, &mut output).unwrap();
    assert_eq!(output.n_sequences(), sequences.len());
    output
}

#[test]
fn a_fault_of_one_sequence_does_not_affect_others() {
    let model = poisoned_model();
    let greedy = SamplingParams { temperature: 0.0, logprobs: Some(2), ..Default::default() };
    let nothing_left =
        SamplingParams { logit_bias: (0..64).map(|id| (id, f32::NEG_INFINITY)).collect(), ..greedy.clone() };
    let good = (vec![1, 2, 3], greedy.clone());
    let poisoned = (vec![1, POISONED, 3], SamplingParams { prompt_logprobs: Some(1), ..greedy });
    for backend in BACKENDS {
        let mut runner = model.runner(&options(backend)).unwrap();
        let alone = step(&mut *runner, std::slice::from_ref(&good));
        let sequences = [good.clone(), poisoned.clone(), (vec![4, 6], nothing_left.clone()), good.clone()];
        let output = step(&mut *runner, &sequences);
        let errors: Vec<_> = (0..4).map(|sequence_idx| output.error(sequence_idx)).collect();
        let expected = [None, Some(SequenceError::InvalidLogits), Some(SequenceError::InvalidLogits), None];
        assert_eq!(errors, expected, "{backend:?}");
        for sequence_idx in [0, 3] {
            assert!(output.sampled(sequence_idx).eq(alone.sampled(0)), "{backend:?}");
        }
    }
}

#[test]
fn all_log_probabilities_of_a_long_prompt_come_in_pieces() {
    let model = poisoned_model();
    let prompt: Vec<u32> = (0..120).map(|i| 6 + i * 7 % 50).collect();
    let sampling = SamplingParams {
        temperature: 0.0,
        prompt_logprobs: Some(3),
        logprobs: Some(3),
        ..Default::default()
    };
    for backend in BACKENDS {
        let reports = |chunk| {
            let limits = RunnerLimits { max_batch_sequences: 64, ..LIMITS };
            let mut runner = model.runner(&RunnerOptions { limits, ..options(backend) }).unwrap();
            let mut reports = Vec::new();
            OneSequence::new(&prompt, Arc::new(sampling.clone()))
                .prefill(&mut *runner, chunk, |report| reports.push((report.chosen, report.top.to_vec())));
            reports
        };
        let whole = reports(120);
        assert_eq!(whole.len(), 120, "119 prompt tokens and the first output");
        assert!(
            whole
                .iter()
                .zip(&prompt[1..])
                .all(|((chosen, top), token)| chosen.token == *token && top.len() == 3)
        );
        assert_eq!(whole, reports(50));
    }
}

#[test]
fn a_runner_reports_its_capacity() {
    let model = poisoned_model();
    for backend in BACKENDS {
        let limits = RunnerLimits { max_sequence_tokens: Some(100), ..LIMITS };
        let capacity = model.runner(&RunnerOptions { limits, ..options(backend) }).unwrap().capacity();
        assert_eq!(
            (capacity.n_blocks, capacity.max_sequence_tokens, capacity.vocabulary_size),
            (16, 100, 64)
        );
        let limits = RunnerLimits { max_sequence_tokens: Some(1 << 20), ..LIMITS };
        let capacity = model.runner(&RunnerOptions { limits, ..options(backend) }).unwrap().capacity();
        assert_eq!(capacity.max_sequence_tokens, 512, "the model's own context");
        let limits = RunnerLimits { n_blocks: u32::MAX, ..LIMITS };
        let error = model.runner(&RunnerOptions { limits, ..options(backend) }).err().unwrap();
        assert!(error.to_string().starts_with("no memory for "), "{error}");
    }
}

#[test]
fn heads_that_do_not_fill_blocks_cannot_be_stored_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel { head_dim: 16, ..Default::default() }.write_gguf(Format::F32, &path).unwrap();
    let model =
        load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap();
    let limits = RunnerLimits { kv_dtype: KvDtype::Q8_0, ..LIMITS };
    let error = model.runner(&RunnerOptions { limits, ..options(BackendKind::Cpu) }).err().unwrap();
    assert_eq!(error.to_string(), "this backend cannot do a q8_0 KV cache with heads of 16");
}
