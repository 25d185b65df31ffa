//! A step of a dense model allocates nothing once the buffers have grown: not in building the input, not in
//! the forward pass on the CPU, not in sampling.

use std::sync::Arc;

use allocation_counter::measure;
use throng_core::request::{RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, StepOutput};
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// A decode step of `n_rows` sequences at `position`, together with a chunk of a prompt.
fn batch(n_sequences: u32, position: u32, sampling: &Arc<SamplingParams>) -> ScheduledBatch {
    let mut batch = ScheduledBatch::default();
    for i in 0..=n_sequences {
        let first = i * 8;
        let blocks: Vec<_> = (first..first + 8).map(BlockId).collect();
        let (start, tokens): (_, Vec<u32>) =
            if i < n_sequences { (position, vec![i]) } else { (16, (0..40).collect()) };
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(i.into()), index: 0 },
            start,
            n_prompt: 4,
            next_prompt_token: None,
            sample: i < n_sequences,
            sampling: Arc::clone(sampling),
            constraint: None,
            adapter: None,
            tokens: &tokens,
            drafts: &[],
            blocks: &blocks,
            history: &[],
            output: &[],
        });
    }
    batch
}

#[test]
fn a_step_in_steady_state_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel { n_layers: 2, ..Default::default() }.write_gguf(Format::Q8_0, &path).unwrap();
    let model =
        load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap();
    let limits = RunnerLimits {
        n_blocks: 128,
        kv_dtype: KvDtype::F16,
        max_batch_tokens: 64,
        max_batch_sequences: 16,
        max_sequence_tokens: None,
    };
    // On one thread: with more it depends on timing when each thread first gets a kind of work and grows its buffers.
    let mut runner =
        model.runner(&RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits }).unwrap();
    let sampling = Arc::new(SamplingParams { top_p: 0.9, logprobs: Some(3), ..Default::default() });
    let batches: Vec<_> = (60..100).map(|position| batch(8, position, &sampling)).collect();
    let mut output = StepOutput::default();
    for batch in &batches {
        runner.execute(batch, &mut output).unwrap();
    }
    let steps = measure(|| {
        for batch in &batches {
            runner.execute(batch, &mut output).unwrap();
        }
    });
    assert_eq!(steps.count_total, 0);
}
