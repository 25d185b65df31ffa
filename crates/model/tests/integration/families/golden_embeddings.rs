//! Embedding models, rerankers and classifiers against transformers: vectors of tiny random models, alone and
//! in batches, on every backend, with whole prompts or chunks as each model takes them.

use std::path::{Path, PathBuf};

use crate::harness::BACKENDS;
use crate::vectors::{Expected, LIMITS, assert_close, step, whole};
use throng_model::pooling::PoolingOutput;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> =
        entries.filter(|path| path.join("expected_embeddings.safetensors").exists()).collect();
    folders.sort();
    assert_eq!(folders.len(), 15, "one fixture a family and kind of head");
    folders
}

fn open(folder: &Path) -> LoadedModel {
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap()
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
