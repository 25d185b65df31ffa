//! LongRoPE: the served context selects the factors when the model is loaded, for all sequences, as in vLLM
//! (`Phi3LongRoPEScaledRotaryEmbedding`) and llama.cpp (`get_rope_factors`).

use std::path::Path;
use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use serde_json::{Value, json};
use throng_core::request::SamplingParams;
use throng_model::arch::Architecture;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/phi3-longrope")
}

fn config() -> Value {
    serde_json::from_slice(&std::fs::read(fixture().join("config.json")).unwrap()).unwrap()
}

/// The fixture with its rope parameters changed.
fn model(change: impl FnOnce(&mut Value)) -> LoadedModel {
    let mut config = config();
    change(&mut config["rope_parameters"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(fixture().join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let options = LoadOptions { prepare: Some(BackendKind::Reference), n_threads: 1, quantize: None };
    load(folder.path(), &options, &mut |_| {}).unwrap()
}

/// The log-probabilities of every token after 14 tokens, with a served context of `n_context`.
fn answer(model: &LoadedModel, backend: BackendKind, n_context: Option<u32>) -> Vec<f32> {
    let limits = RunnerLimits { max_sequence_tokens: n_context, ..LIMITS };
    let mut runner = model.runner(&RunnerOptions { backend, n_threads: 1, limits }).unwrap();
    let sampling = SamplingParams { temperature: 0.0, logprobs: Some(320), ..Default::default() };
    let ids: Vec<u32> = (3..17).collect();
    let mut logprobs = vec![f32::NAN; 320];
    OneSequence::new(&ids, Arc::new(sampling)).prefill(&mut *runner, 14, |report| {
        report.top.iter().for_each(|top| logprobs[top.token as usize] = top.logprob);
    });
    assert!(logprobs.iter().all(|logprob| logprob.is_finite()));
    logprobs
}

#[test]
fn frequencies_follow_the_formula_in_both_contexts() {
    let architecture = Architecture::from_config_json(config().to_string().as_bytes()).unwrap();
    let [rope] = architecture.config.ropes.as_slice() else { panic!("one rotation for all layers") };
    let (long, short) = ([1.0, 1.7, 3.1, 5.9], [1.0, 1.1, 1.2, 1.3]);
    // sqrt(1 + ln(512 / 16) / ln(16)), for both.
    let amplitude = (1.0 + 5.0 / 4.0_f64).sqrt();
    for (n_context, factors) in [(1, short), (16, short), (17, long), (512, long)] {
        let table = rope.for_context(n_context);
        assert!((table.amplitude - amplitude).abs() < 1e-12);
        for (i, (frequency, factor)) in table.frequencies.iter().zip(factors).enumerate() {
            let expected = 10_000_f64.powf(-2.0 * i as f64 / 8.0) / factor;
            assert!((frequency / expected - 1.0).abs() < 1e-12, "{i} for {n_context}");
        }
    }
}

#[test]
fn each_context_may_have_its_own_amplitude() {
    let mut config = config();
    config["rope_parameters"]["short_mscale"] = json!(1.25);
    config["rope_parameters"]["long_mscale"] = json!(1.5);
    let architecture = Architecture::from_config_json(config.to_string().as_bytes()).unwrap();
    let amplitude = |n_context| architecture.config.ropes[0].for_context(n_context).amplitude;
    assert_eq!((amplitude(16), amplitude(17)), (1.25, 1.5));
}

#[test]
fn the_served_context_chooses_the_factors() {
    let own = model(|_| {});
    let only_short = model(|rope| rope["long_factor"] = rope["short_factor"].clone());
    let only_long = model(|rope| rope["short_factor"] = rope["long_factor"].clone());
    for backend in BACKENDS {
        let of = |model, n_context| answer(model, backend, n_context);
        assert_eq!(of(&own, Some(16)), of(&only_short, Some(16)));
        assert_eq!(of(&own, Some(17)), of(&only_long, Some(17)));
        assert_eq!(of(&own, None), of(&only_long, None));
        assert_ne!(of(&own, Some(16)), of(&own, Some(17)));
    }
}
