//! Results of transformers for fixtures, and checks against them on any backend. Does not know the backends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use throng_core::request::SamplingParams;
use throng_core::scheduling::executor::Executor;

use crate::one_sequence::OneSequence;

/// Folders of fixtures that have the logits of transformers, in order.
///
/// # Panics
/// When they cannot be read.
pub fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    let entries = std::fs::read_dir(root).expect("the fixtures are there");
    let folders = entries.map(|entry| entry.expect("a folder is read").path());
    let mut folders: Vec<_> = folders.filter(|path| path.join("expected.safetensors").exists()).collect();
    folders.sort();
    assert_eq!(folders.len(), 61, "one fixture a family and a few variants");
    folders
}

/// Results of transformers for a folder of reference models or adapters: `expected.safetensors`.
pub struct Expected {
    /// Tokens of the prompt.
    pub input_ids: Vec<u32>,
    /// `[48, vocabulary]`.
    pub logits: Vec<f32>,
    /// The most likely tokens after the prompt, one after the other.
    pub greedy: Vec<u32>,
}

impl Expected {
    /// Reads the file of a folder.
    ///
    /// # Panics
    /// When it is missing or broken.
    pub fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("expected.safetensors")).expect("a whole file");
        let tensors = SafeTensors::deserialize(&bytes).expect("a whole file");
        let ids = |name| -> Vec<u32> {
            let data = tensors.tensor(name).expect("a whole file").data().to_vec();
            data.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect()
        };
        let logits = tensors.tensor("logits").expect("a whole file").data().to_vec();
        let logits = logits.as_chunks::<4>().0.iter().map(|logit| f32::from_le_bytes(*logit)).collect();
        Self { input_ids: ids("input_ids"), logits, greedy: ids("greedy") }
    }
}

/// Log-probabilities of all tokens after each of `input_ids`, prefilled in chunks of `chunk` tokens.
///
/// # Panics
/// When a step fails.
pub fn log_probabilities(
    runner: &mut dyn Executor,
    vocabulary: usize,
    input_ids: &[u32],
    chunk: usize,
) -> Vec<f32> {
    let sampling = SamplingParams {
        temperature: 0.0,
        logprobs: Some(vocabulary as u32),
        prompt_logprobs: Some(vocabulary as u32),
        ..Default::default()
    };
    let mut sequence = OneSequence::new(input_ids, Arc::new(sampling));
    let mut logprobs = vec![f32::NAN; input_ids.len() * vocabulary];
    let mut rows = logprobs.chunks_exact_mut(vocabulary);
    sequence.prefill(runner, chunk, |report| {
        let row = rows.next().expect("a row for each token");
        report.top.iter().for_each(|top| row[top.token as usize] = top.logprob);
    });
    assert!(logprobs.iter().all(|logprob| logprob.is_finite()), "every position reports every token");
    logprobs
}

/// Log-probabilities of one row of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
}

/// Largest distance of log-probabilities from those of transformers.
pub fn largest_distance(found: &[f32], expected: &Expected, vocabulary: usize) -> f64 {
    let mut worst = 0.0f64;
    for (found, expected) in found.chunks(vocabulary).zip(expected.logits.chunks(vocabulary)) {
        for (found, expected) in found.iter().zip(log_softmax(expected)) {
            worst = worst.max((f64::from(*found) - expected).abs());
        }
    }
    worst
}

/// The most likely tokens after the prompt, prefilled in chunks.
///
/// # Panics
/// When a step fails.
pub fn greedy(runner: &mut dyn Executor, expected: &Expected, chunk: usize) -> Vec<u32> {
    let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
    let mut sequence = OneSequence::new(&expected.input_ids, Arc::new(sampling));
    sequence.prefill(runner, chunk, |_| {});
    sequence.decode(runner, expected.greedy.len() - 1);
    sequence.output().to_vec()
}
