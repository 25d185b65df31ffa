//! Quantized GGUF files made by llama.cpp, compared with exact (float64) arithmetic on their dequantized
//! weights: with unquantized activations almost equal, with quantized ones with an error no larger than
//! llama.cpp's own.
//!
//! Reads `../shared/gguf`, which is not part of the project.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{LIMITS, OneSequence};
use serde::Deserialize;
use throng_core::request::SamplingParams;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::shared_files::shared;

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    /// llama.cpp's log-probabilities of the first output token.
    first: Vec<(u32, f64)>,
    /// The same tokens in float64.
    exact: Vec<(u32, f64)>,
    greedy: Vec<u32>,
}

fn files() -> Vec<PathBuf> {
    let names = ["llama-F16", "llama-Q4_0", "llama-Q4_K_M", "llama-Q6_K", "llama-Q8_0", "qwen3-Q8_0"];
    names.iter().filter_map(|name| shared(&format!("gguf/{name}.gguf"))).collect()
}

fn open(file: &Path) -> (LoadedModel, Expected) {
    let model =
        load(file, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap();
    let expected = std::fs::read(file.with_added_extension("expected.json")).unwrap();
    (model, serde_json::from_slice(&expected).unwrap())
}

/// Log-probabilities of every token after the prompt, and the tokens that greedy decoding chooses.
fn run(model: &LoadedModel, backend: BackendKind, prompt: &[u32], n_output: usize) -> (Vec<f64>, Vec<u32>) {
    let vocabulary = model.config.vocabulary_size;
    let limits = RunnerLimits { kv_dtype: model.default_kv_dtype(backend), ..LIMITS };
    let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits }).unwrap();
    let sampling = SamplingParams {
        temperature: 0.0,
        ignore_eos: true,
        logprobs: Some(vocabulary as u32),
        ..Default::default()
    };
    let mut sequence = OneSequence::new(prompt, Arc::new(sampling));
    let mut logprobs = vec![f64::NAN; vocabulary];
    sequence.prefill(&mut *runner, 128, |report| {
        report.top.iter().for_each(|top| logprobs[top.token as usize] = top.logprob.into());
    });
    sequence.decode(&mut *runner, n_output - 1);
    (logprobs, sequence.output().to_vec())
}

fn name(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn without_rounded_activations_the_result_is_exact() {
    for file in files() {
        let (model, expected) = open(&file);
        let mut worst = 0.0f64;
        for case in &expected.cases {
            let (found, _) = run(&model, BackendKind::Reference, &case.prompt, 1);
            worst = case
                .exact
                .iter()
                .fold(worst, |worst, (id, exact)| worst.max((found[*id as usize] - exact).abs()));
        }
        println!("{}: at most {worst:.1e} from exact", name(&file));
        assert!(worst < 1e-3, "{}: {worst}", name(&file));
    }
}

#[test]
fn with_rounded_activations_the_result_is_as_close_as_llama_cpp() {
    for file in files() {
        let (model, expected) = open(&file);
        let (mut ours, mut theirs, mut worst, mut n) = (0.0, 0.0, 0.0f64, 0.0);
        let (mut equal, mut n_greedy) = (0, 0);
        for case in &expected.cases {
            let (found, greedy) = run(&model, BackendKind::Cpu, &case.prompt, case.greedy.len());
            for ((id, exact), (same, first)) in case.exact.iter().zip(&case.first) {
                assert_eq!(id, same);
                let distance = (found[*id as usize] - exact).abs();
                (ours, theirs, n) = (ours + distance, theirs + (first - exact).abs(), n + 1.0);
                worst = worst.max(distance);
            }
            equal += greedy.iter().zip(&case.greedy).take_while(|(a, b)| a == b).count();
            n_greedy += greedy.len();
        }
        let (ours, theirs) = (ours / n, theirs / n);
        println!(
            "{}: mean distance {ours:.4} (llama.cpp {theirs:.4}), worst {worst:.4}; {equal} of {n_greedy} greedy \
             tokens as llama.cpp's before the first other",
            name(&file)
        );
        assert!(ours <= theirs, "{}: {ours} > {theirs}", name(&file));
        assert!(!name(&file).contains("F16") || worst < 0.02, "{}: {worst}", name(&file));
    }
}
