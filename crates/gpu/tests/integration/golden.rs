//! Every family against transformers: logits of 48 tokens and 32 greedy tokens of tiny random models, in one
//! piece and in chunks.

use std::path::Path;
use std::sync::Arc;

use throng_gpu::{Device, GpuBackend};
use throng_model::load::LoadError;
use throng_model::runner::ModelRunner;
use throng_model::{LoadOptions, LoadedModel, load};
use throng_testkit::golden::{Expected, fixtures, greedy, largest_distance, log_probabilities};
use throng_testkit::one_sequence::LIMITS;

use crate::harness::{backend, device};

/// Tolerance: f32 sums in another order differ by less, a wrong formula by much more. Activations are never
/// rounded, whatever the format of the weights.
const TOLERANCE: f64 = 2e-4;

fn open(folder: &Path) -> LoadedModel {
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {})
        .expect("the fixture opens")
}

fn runner(model: &LoadedModel, device: &Arc<Device>) -> Result<ModelRunner<GpuBackend>, LoadError> {
    model.runner_with(backend(device), &LIMITS)
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    let Some(device) = device() else { return };
    for folder in fixtures() {
        let (model, expected) = (open(&folder), Expected::read(&folder));
        let mut runner = runner(&model, &device).expect("the family runs");
        let vocabulary = model.config.vocabulary_size;
        for chunk in [48, 7] {
            let found = log_probabilities(&mut runner, vocabulary, &expected.input_ids, chunk);
            let worst = largest_distance(&found, &expected, vocabulary);
            let what = format!("{} in chunks of {chunk}: off by {worst:.2e}", model.name);
            println!("{what}");
            assert!(worst < TOLERANCE, "{what}");
        }
        assert_eq!(greedy(&mut runner, &expected, 13), expected.greedy, "{}", model.name);
    }
}
