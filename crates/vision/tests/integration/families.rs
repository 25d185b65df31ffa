//! Every family from stored pixel values: features, log-probabilities and greedy tokens of transformers, in
//! one piece and in chunks that cut pictures, on every backend.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use throng_core::prompt_media::MediaContent;
use throng_core::request::SamplingParams;
use throng_core::scheduling::batch::WorkShare;
use throng_model::media::{Features, MediaEncoder};
use throng_model::{BackendKind, RunnerOptions};
use throng_testkit::shared_files::shared;

use crate::cases::{Case, Folder, LIMITS, OneSequence};

/// Tolerances of the README of the reference models.
const OF_FEATURES: f32 = 1e-4;
const OF_LOGPROBS: f64 = 2e-4;

const BACKENDS: [BackendKind; 2] = [BackendKind::Reference, BackendKind::Cpu];

/// A folder beside the checkout; the first is a fixture too.
pub fn folder(name: &str) -> Option<PathBuf> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    if fixture.exists() { Some(fixture) } else { shared(&format!("vision/{name}")) }
}

fn encoder(folder: &Folder, backend: BackendKind) -> Box<dyn MediaEncoder> {
    let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
    folder.model.media().expect("an encoder").encoder(backend, &options.threads()).expect("it runs")
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The features of a content whose work is done in so many parts.
fn encoded(encoder: &mut dyn MediaEncoder, content: &MediaContent, n_parts: u32) -> Features {
    let mut encoding = encoder.begin(content).expect("it is read");
    let mut shares = (1..=n_parts).map(|done| WorkShare { done, all: n_parts });
    let features = shares.find_map(|share| encoding.advance(share).expect("it is encoded"));
    features.expect("all is done")
}

fn check_features(folder: &Folder) {
    for backend in BACKENDS {
        let mut encoder = encoder(folder, backend);
        for picture in folder.pictures() {
            let offsets: Vec<u32> = (0..folder.n_placeholders(&picture) as u32).collect();
            let content = folder.content(&picture, &offsets);
            let features = encoded(&mut *encoder, &content, 1);
            for n_parts in [3, 1000] {
                let parted = encoded(&mut *encoder, &content, n_parts);
                assert!(parted == features, "{} {picture} in {n_parts} parts", folder.model.name);
            }
            let off = worst(&features.rows, &folder.expected_features(&picture));
            println!("{} {picture} on {backend:?}: features off by {off:.2e}", folder.model.name);
            assert!(off < OF_FEATURES, "{} {picture}: {off:.2e}", folder.model.name);
            let deepstack = folder.expected_deepstack(&picture);
            assert_eq!(features.deepstack.len(), deepstack.len());
            for (found, expected) in features.deepstack.iter().zip(&deepstack) {
                let off = worst(found, expected);
                assert!(off < OF_FEATURES, "deepstack of {} {picture}: {off:.2e}", folder.model.name);
            }
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
}

/// Log-probabilities of all tokens after each token of the prompt.
fn log_probabilities(folder: &Folder, options: &RunnerOptions, case: &Case, chunk: usize) -> Vec<f32> {
    let vocabulary = folder.model.config.vocabulary_size;
    let sampling = SamplingParams {
        temperature: 0.0,
        logprobs: Some(vocabulary as u32),
        prompt_logprobs: Some(vocabulary as u32),
        ..Default::default()
    };
    let mut runner = folder.model.runner(options).expect("a runner");
    let mut sequence = OneSequence::new(case, Arc::new(sampling));
    let mut logprobs = vec![f32::NAN; case.input_ids.len() * vocabulary];
    let mut rows = logprobs.chunks_exact_mut(vocabulary);
    sequence.prefill(&mut *runner, chunk, |report| {
        let row = rows.next().expect("a report a position");
        report.top.iter().for_each(|top| row[top.token as usize] = top.logprob);
    });
    logprobs
}

fn check_case(folder: &Folder, case: &Case, chunks: &[usize]) {
    let (name, vocabulary) = (&folder.model.name, folder.model.config.vocabulary_size);
    if let (Some(expected), Some(media)) = (&case.position_ids, &case.media) {
        let n = case.input_ids.len();
        for (i, position) in media.positions.iter().enumerate() {
            let expected = [expected[i], expected[n + i], expected[2 * n + i]];
            assert_eq!(position.0, expected, "{name} {} position {i}", case.name);
        }
    }
    for backend in BACKENDS {
        let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
        let mut whole: Option<Vec<f32>> = None;
        for &chunk in chunks {
            let found = log_probabilities(folder, &options, case, chunk);
            let mut worst = 0.0_f64;
            // GGUF files leave out rows behind the last token.
            let width = case.logits.len() / case.input_ids.len();
            for (found, expected) in found.chunks(vocabulary).zip(case.logits.chunks(width)) {
                for (found, expected) in found.iter().zip(log_softmax(&expected[..vocabulary])) {
                    worst = worst.max((f64::from(*found) - expected).abs());
                }
            }
            let what =
                format!("{name} {} on {backend:?} in chunks of {chunk}: off by {worst:.2e}", case.name);
            println!("{what}");
            assert!(worst < OF_LOGPROBS, "{what}");
            let bits = whole.get_or_insert_with(|| found.clone());
            let same = bits.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same || backend == BackendKind::Reference, "{what}: other bits");
        }
        let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
        let mut runner = folder.model.runner(&options).expect("a runner");
        let mut sequence = OneSequence::new(case, Arc::new(sampling));
        sequence.prefill(&mut *runner, chunks[0], |_| {});
        sequence.decode(&mut *runner, case.greedy.len() - 1);
        assert_eq!(sequence.output(), case.greedy, "{name} {} on {backend:?}", case.name);
    }
}

fn check(name: &str, chunks: &[usize]) {
    let Some(folder) = folder(name) else { return };
    let folder = Folder::open(&folder);
    check_features(&folder);
    folder.cases().iter().for_each(|case| check_case(&folder, case, chunks));
}

const CHUNKS: [usize; 4] = [192, 1, 7, 32];

#[test]
fn qwen3_vl() {
    check("qwen3-vl", &CHUNKS);
}

#[test]
fn qwen3_vl_moe() {
    check("qwen3-vl-moe", &CHUNKS);
}

#[test]
fn qwen3_5() {
    check("qwen3-5", &CHUNKS);
}

#[test]
fn smolvlm() {
    check("smolvlm", &CHUNKS);
}

/// Pictures are whole: a chunk is a prompt.
#[test]
fn gemma3() {
    check("gemma3", &[192]);
}

#[test]
fn qwen2_5_vl() {
    check("qwen2-5-vl", &CHUNKS);
}

#[test]
fn mistral3() {
    check("mistral3", &CHUNKS);
}

#[test]
fn gemma4() {
    check("gemma4", &CHUNKS);
}

#[test]
fn internvl3() {
    check("internvl3", &CHUNKS);
}

#[test]
fn llava_1_5() {
    check("llava-1-5", &CHUNKS);
}

#[test]
fn llava_onevision() {
    check("llava-onevision", &CHUNKS);
}

#[test]
fn llama4() {
    check("llama4", &CHUNKS);
}

#[test]
fn glm4_1v() {
    check("glm4-1v", &CHUNKS);
}

#[test]
fn glm4_5v() {
    check("glm4-5v", &CHUNKS);
}

/// The pair of a GGUF file and its `mmproj`, which is found beside it.
fn check_gguf(name: &str, chunks: &[usize]) {
    let (Some(files), Some(cases)) = (folder("gguf"), folder(name)) else { return };
    let folder = Folder::open_gguf(&cases, &files.join(format!("{name}.gguf")));
    check_features(&folder);
    folder.cases().iter().for_each(|case| check_case(&folder, case, chunks));
}

#[test]
fn qwen3_vl_from_gguf() {
    check_gguf("qwen3-vl", &CHUNKS);
}

#[test]
fn gemma3_from_gguf() {
    check_gguf("gemma3", &[192]);
}

#[test]
fn mistral3_from_gguf() {
    check_gguf("mistral3", &CHUNKS);
}
