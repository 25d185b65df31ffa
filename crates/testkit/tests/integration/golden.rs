//! The golden models of the model crate, run on backends that are written outside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use throng_core::request::{RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{
    BlockId, MemorySlot, NewSequence, ScheduledBatch, StateShare, StepOutput,
};
use throng_core::scheduling::executor::Executor;
use throng_model::backend::Backend;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{LoadOptions, LoadedModel, load};

pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 8,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 64,
    max_batch_sequences: 1,
    max_sequence_tokens: None,
};

pub const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 1, quantize: None };

/// A golden model with what transformers gives for a prompt.
pub struct Golden {
    pub model: LoadedModel,
    pub prompt: Vec<TokenId>,
    pub greedy: Vec<TokenId>,
    /// `[prompt, vocabulary]`.
    pub logits: Vec<f32>,
}

pub fn golden() -> Vec<Golden> {
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
        let model = load(&folder, &OPTIONS, &mut |_| {}).unwrap();
        Golden { model, prompt: ids("input_ids"), greedy: ids("greedy"), logits }
    };
    folders.into_iter().map(open).collect()
}

/// One sequence run by hand, in chunks of the prompt and then token by token.
pub fn run(
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

impl Golden {
    /// Checks the log-probabilities of the prompt and the greedy output that a backend computes.
    pub fn check(&self, backend: impl Backend) {
        let Self { model, prompt, greedy, logits } = self;
        let vocabulary = model.config.vocabulary_size;
        let all = Some(vocabulary as u32);
        let sampling =
            SamplingParams { temperature: 0.0, logprobs: all, prompt_logprobs: all, ..Default::default() };
        let mut runner = model.runner_with(backend, &LIMITS).unwrap();
        let mut worst = 0.0_f64;
        let mut expected = logits.chunks_exact(vocabulary);
        run(&mut runner, prompt, 1, &Arc::new(sampling), |output| {
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
        // Without reports.
        let sampling = Arc::new(SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() });
        let output = run(&mut runner, prompt, greedy.len(), &sampling, |_| {});
        assert_eq!(&output, greedy, "{}", model.name);
    }
}
