//! Embedding models, rerankers and classifiers against transformers: vectors of tiny random models, alone and in batches, on every
//! backend, with whole prompts or chunks as each model takes them.

mod harness;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness::BACKENDS;
use safetensors::SafeTensors;
use throng_core::batch::{BLOCK_TOKENS, BlockId, NewSequence, ScheduledBatch, StepOutput};
use throng_core::executor::Executor;
use throng_core::request::{RequestId, SamplingParams, SequenceId};
use throng_model::kv_cache::KvDtype;
use throng_model::pooling::PoolingOutput;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

/// f32 sums in another order differ by less, a wrong formula by much more.
const TOLERANCE: f32 = 1e-5;

const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 32,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 300,
    max_batch_sequences: 8,
    max_sequence_tokens: None,
};

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> =
        entries.filter(|path| path.join("expected_embeddings.safetensors").exists()).collect();
    folders.sort();
    assert_eq!(folders.len(), 9, "one fixture a family and kind of head");
    folders
}

fn open(folder: &Path) -> LoadedModel {
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap()
}

/// The texts of a fixture, as token ids, and the vector of each.
struct Expected {
    texts: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
}

impl Expected {
    fn read(model: &LoadedModel, folder: &Path) -> Self {
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
fn step(runner: &mut dyn Executor, parts: &[(usize, &[u32], usize)]) -> Vec<Option<Vec<f32>>> {
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

fn whole(text: &[u32]) -> (usize, &[u32], usize) {
    (0, text, text.len())
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: off by {worst:.2e}");
    assert!(worst < TOLERANCE, "{what}: off by {worst:.2e}");
}

#[test]
fn vectors_are_those_of_transformers_alone_and_in_batches() {
    for folder in fixtures() {
        let model = open(&folder);
        let expected = Expected::read(&model, &folder);
        for backend in BACKENDS {
            let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
            let mut runner = model.runner(&options).unwrap();
            let mut alone = Vec::new();
            for (text, vector) in expected.texts.iter().zip(&expected.vectors) {
                let found = step(&mut *runner, &[whole(text)]).remove(0).unwrap();
                assert_close(&found, vector, &format!("{} on {backend:?}", model.name));
                alone.push(Some(found));
            }
            let all: Vec<_> = expected.texts.iter().map(|text| whole(text)).collect();
            assert_eq!(
                step(&mut *runner, &all),
                alone,
                "{} on {backend:?}: other bits in a batch",
                model.name
            );
            let reversed: Vec<_> = all.iter().rev().copied().collect();
            alone.reverse();
            assert_eq!(step(&mut *runner, &reversed), alone, "{} on {backend:?}: other bits", model.name);
        }
    }
}

/// Decoders that pool the last token take prompts in chunks; encoders and means take them whole.
#[test]
fn prompts_are_whole_where_tokens_see_those_after_them() {
    let whole_only = ["bert-cls", "bert-reranker", "embeddinggemma", "modernbert-mean", "nomic-bert"];
    for folder in fixtures() {
        let model = open(&folder);
        let expected = Expected::read(&model, &folder);
        let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits: LIMITS };
        let mut runner = model.runner(&options).unwrap();
        let is_whole = !model.name.starts_with("qwen3");
        assert_eq!(runner.capacity().takes_whole_prompts, is_whole, "{}", model.name);
        assert!(is_whole || !whole_only.contains(&&*model.name));
        if !is_whole {
            let text = &expected.texts[5];
            let found = step(&mut *runner, &[whole(text)]);
            assert_eq!(step(&mut *runner, &[(0, text, 20)]), [None]);
            assert_eq!(step(&mut *runner, &[(20, text, text.len())]), found, "{} in chunks", model.name);
        }
    }
}

#[test]
fn files_say_what_vectors_are() {
    for folder in fixtures() {
        let model = open(&folder);
        let pooler = model.pooler.as_ref().unwrap();
        let is_reranker = model.name.ends_with("reranker");
        assert_eq!(
            matches!(pooler.config.output, PoolingOutput::Labels { .. }),
            is_reranker,
            "{}",
            model.name
        );
        assert_eq!(pooler.config.normalizes, !is_reranker, "{}", model.name);
    }
}
