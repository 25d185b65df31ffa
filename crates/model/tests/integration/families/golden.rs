//! Every family against transformers: logits of 48 tokens and 32 greedy tokens of tiny random models, in one
//! piece and in chunks, on every backend. The fixtures were made by transformers 5.23 in float32 with eager
//! attention; half of the configurations have the keys of that version, half the older ones.

use std::path::Path;

use crate::harness::{BACKENDS, Expected, LIMITS};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::golden::{fixtures, greedy, largest_distance, log_probabilities};

/// Tolerance: f32 sums in another order differ by less, a wrong formula by much more.
const TOLERANCE: f64 = 2e-4;

/// Activations that are multiplied with MXFP4 are rounded to two terms of int8.
const TOLERANCE_OF_MXFP4: f64 = 6e-4;

pub fn tolerance(model: &LoadedModel, backend: BackendKind) -> f64 {
    let rounds = backend != BackendKind::Reference && model.name.ends_with("mxfp4");
    if rounds { TOLERANCE_OF_MXFP4 } else { TOLERANCE }
}

fn open(folder: &Path) -> LoadedModel {
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap()
}

#[test]
fn logits_are_those_of_transformers() {
    for folder in fixtures() {
        let (model, expected) = (open(&folder), Expected::read(&folder));
        let vocabulary = model.config.vocabulary_size;
        for backend in BACKENDS {
            let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
            for chunk in [48, 1, 7, 32] {
                let mut runner = model.runner(&options).unwrap();
                let found = log_probabilities(&mut *runner, vocabulary, &expected.input_ids, chunk);
                let worst = largest_distance(&found, &expected, vocabulary);
                let what = format!("{} on {backend:?} in chunks of {chunk}: off by {worst:.2e}", model.name);
                println!("{what}");
                assert!(worst < tolerance(&model, backend), "{what}");
            }
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    for folder in fixtures() {
        let (model, expected) = (open(&folder), Expected::read(&folder));
        for backend in BACKENDS {
            let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
            for chunk in [48, 13] {
                let mut runner = model.runner(&options).unwrap();
                let found = greedy(&mut *runner, &expected, chunk);
                assert_eq!(found, expected.greedy, "{} on {backend:?}", model.name);
            }
        }
    }
}

#[test]
fn other_families_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "rwkv7", "hidden_size": 64}"#)
        .unwrap();
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let error = load(folder.path(), &options, &mut |_| {}).err().unwrap().to_string();
    assert!(error.starts_with("not supported yet: rwkv7 (supported: llama, "), "{error}");
}

#[test]
fn the_readme_says_how_each_fixture_was_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let folders =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_dir());
    let names: Vec<String> = folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    assert!(names.len() > 50, "{}", names.len());
    for name in names {
        assert!(readme.contains(&format!("`{name}`")), "README.md does not name {name}");
    }
}
