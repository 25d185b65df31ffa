//! A device that has only what a Llama needs: it runs the golden models that need no more, refuses the others
//! before it reads a weight, and replays the layers of steps that it has recorded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::{TensorSource, TensorView};
use throng_core::request::{RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::backend::{BackendError, Capability, DeviceMemory};
use throng_model::decoder::weights::{DecoderWeights, TensorError};
use throng_model::load::{LoadError, load_bytes};
use throng_model::runner::RunnerLimits;
use throng_testkit::llama_backend::LlamaBackend;
use throng_testkit::tiny_model::TinyModel;

use crate::golden::{LIMITS, OPTIONS, golden};

const LLAMA: TinyModel = TinyModel {
    architecture: "llama",
    hidden: 64,
    n_layers: 3,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 16,
    feed_forward: 96,
    experts: (0, 0),
    vocabulary: 64,
    context: 512,
    with_tokenizer: false,
    seed: 1,
};

#[test]
fn golden_models_that_need_no_more_than_a_llama_run_and_the_others_are_refused() {
    let (mut run, mut needed) = (BTreeSet::new(), BTreeSet::new());
    for golden in golden() {
        let lacking = Capability::needed_by(&golden.model.config);
        if lacking.is_empty() {
            run.insert(golden.model.config.family);
            golden.check(LlamaBackend::default());
            continue;
        }
        match golden.model.runner_with(LlamaBackend::default(), &LIMITS) {
            Err(LoadError::Tensors(TensorError::Backend(BackendError::Lacks(named)))) => {
                assert_eq!(named, lacking, "{}", golden.model.name);
            }
            Err(error) => panic!("{}: {error}", golden.model.name),
            Ok(_) => panic!("{} runs without {lacking:?}", golden.model.name),
        }
        needed.extend(lacking);
    }
    assert!(run.contains("llama") && run.contains("qwen2"), "only these ran: {run:?}");
    assert!(needed.len() >= 15, "the golden models need no more than {needed:?}");
}

/// Tensors that nobody may read.
struct Unread(Gguf);

impl TensorSource for Unread {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        panic!("{name} is read")
    }

    fn names(&self) -> Vec<&str> {
        self.0.names()
    }
}

#[test]
fn a_device_refuses_a_model_before_it_reads_a_weight() {
    let tiny = TinyModel { architecture: "qwen3moe", experts: (4, 2), ..LLAMA };
    let gguf = Gguf::parse(&tiny.gguf(Format::F32)).expect("it is a GGUF file");
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).expect("it is a Qwen 3");
    let refused = DecoderWeights::load(&LlamaBackend::default(), &architecture, &Unread(gguf), &mut |_| {});
    let lacking = BTreeSet::from([Capability::ColumnNorm, Capability::Experts]);
    assert_eq!(refused.err(), Some(TensorError::Backend(BackendError::Lacks(lacking.clone()))));
    let message = BackendError::Lacks(lacking).to_string();
    assert_eq!(message, "this backend has no norms of columns, mixtures of experts");
}

/// The log-probabilities of prompts of five tokens and of eleven steps after them.
fn token_by_token(executor: &mut dyn Executor, n_sequences: usize) -> Vec<Vec<u32>> {
    let sampling =
        SamplingParams { temperature: 0.0, logprobs: Some(4), ignore_eos: true, ..Default::default() };
    let sampling = Arc::new(sampling);
    let mut tokens: Vec<Vec<TokenId>> = (0..n_sequences as u32).map(|i| (i..i + 5).collect()).collect();
    let (mut batch, mut output, mut bits) = (ScheduledBatch::default(), StepOutput::default(), Vec::new());
    for step in 0..12 {
        batch.clear();
        // Steps of all sequences and of all but one in turn.
        for (index, tokens) in tokens.iter().enumerate().take(n_sequences - step % 2) {
            let start = if step == 0 { 0 } else { tokens.len() - 1 };
            batch.push(NewSequence {
                id: SequenceId { request: RequestId(1), index: index as u32 },
                start: start as u32,
                n_prompt: 5,
                next_prompt_token: None,
                sample: true,
                sampling: Arc::clone(&sampling),
                constraint: None,
                adapter: None,
                tokens: &tokens[start..],
                drafts: &[],
                blocks: &[BlockId(2 * index as u32), BlockId(2 * index as u32 + 1)],
                history: &[],
                output: &[],
            });
        }
        executor.execute(&batch, &mut output).expect("the device works");
        for (sequence_idx, tokens) in tokens.iter_mut().enumerate().take(batch.sequences().len()) {
            let answer = output.sampled(sequence_idx).next().expect("it has a token");
            tokens.push(answer.chosen.token);
            bits.push(answer.top.iter().map(|top| top.logprob.to_bits()).collect());
        }
    }
    bits
}

#[test]
fn replayed_layers_give_the_bits_of_layers_that_are_run() {
    let model = load_bytes("tiny", &LLAMA.gguf(Format::F32), &OPTIONS, &mut |_| {}).expect("it loads");
    let limits = RunnerLimits { max_batch_sequences: 4, ..LIMITS };
    let run = |backend: LlamaBackend| {
        let counts = backend.counts();
        let mut runner = model.runner_with(backend, &limits).expect("it fits");
        let bits = token_by_token(&mut runner, 4);
        let [n_recorded, n_replayed] =
            [&counts.n_recorded, &counts.n_replayed].map(|count| count.load(Ordering::Relaxed));
        (bits, n_recorded, n_replayed)
    };
    let (anew, n_recorded, n_replayed) = run(LlamaBackend::without_replay());
    assert_eq!((anew.len(), n_recorded, n_replayed), (4 + 11 * 4 - 6, 12, 0));
    let (replayed, n_recorded, n_replayed) = run(LlamaBackend::default());
    assert!(replayed == anew);
    // The prompts have a shape of their own; three and four sequences have the same one.
    assert_eq!((n_recorded, n_replayed), (2, 10));
}

#[test]
fn a_device_without_adapters_refuses_them() {
    let refused = LlamaBackend::default().low_rank(64, &[], Format::BF16).err();
    assert_eq!(refused, Some(BackendError::lacks(Capability::Adapters)));
}
