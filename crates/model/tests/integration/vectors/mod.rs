//! Vectors of texts, and what transformers gives for the folder of a fixture:
//! `expected_embeddings.safetensors`.

use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use throng_core::request::{RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, BlockId, NewSequence, ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::Executor;
use throng_model::LoadedModel;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;

/// f32 sums in another order differ by less, a wrong formula by much more.
const TOLERANCE: f32 = 1e-5;

pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 32,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 300,
    max_batch_sequences: 8,
    max_sequence_tokens: None,
};

/// The texts of a fixture, as token ids, and the vector of each.
pub struct Expected {
    pub texts: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
}

impl Expected {
    pub fn read(model: &LoadedModel, folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("expected_embeddings.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let integers = |name: &str| -> Option<Vec<u32>> {
            let data = tensors.tensor(name).ok()?.data().to_vec();
            Some(data.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect())
        };
        let floats = |name: &str| -> Option<Vec<f32>> {
            let data = tensors.tensor(name).ok()?.data().to_vec();
            Some(data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
        };
        let (ids, lengths) = (integers("input_ids").unwrap(), integers("lengths").unwrap());
        let segments = integers("token_type_ids").unwrap_or_else(|| vec![0; ids.len()]);
        let vocabulary = model.config.vocabulary_size as u32;
        let ids: Vec<u32> = ids.iter().zip(segments).map(|(id, segment)| id + segment * vocabulary).collect();
        let row = ids.len() / lengths.len();
        let texts = ids.chunks(row).zip(&lengths).map(|(row, n)| row[..*n as usize].to_vec()).collect();
        let vectors = floats("embedding").or_else(|| floats("score")).unwrap();
        let width = vectors.len() / lengths.len();
        Self { texts, vectors: vectors.chunks(width).map(<[f32]>::to_vec).collect() }
    }
}

/// One step with these parts of texts; the vectors of those that end in it.
pub fn step(runner: &mut dyn Executor, parts: &[(usize, &[u32], usize)]) -> Vec<Option<Vec<f32>>> {
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    let sampling = Arc::new(SamplingParams { max_tokens: 1, ..Default::default() });
    let mut next_block = 0;
    for &(start, text, end) in parts {
        let n_blocks = end.div_ceil(BLOCK_TOKENS) as u32;
        // Scattered, so that errors in reading the block table are found.
        let blocks: Vec<_> =
            (next_block..next_block + n_blocks).map(|i| BlockId((i * 7 + 3) % LIMITS.n_blocks)).collect();
        next_block += n_blocks;
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(1), index: next_block },
            start: start as u32,
            n_prompt: text.len() as u32,
            next_prompt_token: None,
            sample: end == text.len(),
            sampling: Arc::clone(&sampling),
            constraint: None,
            adapter: None,
            tokens: &text[start..end],
            drafts: &[],
            blocks: &blocks,
            history: &[],
            output: &[],
        });
    }
    runner.execute(&batch, &mut output).unwrap();
    let vector = |i: usize| {
        assert_eq!(output.error(i), None);
        let answer = output.sampled(i).next()?;
        Some(answer.top.iter().map(|element| element.logprob).collect())
    };
    (0..parts.len()).map(vector).collect()
}

pub fn whole(text: &[u32]) -> (usize, &[u32], usize) {
    (0, text, text.len())
}

pub fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: off by {worst:.2e}");
    assert!(worst < TOLERANCE, "{what}: off by {worst:.2e}");
}
