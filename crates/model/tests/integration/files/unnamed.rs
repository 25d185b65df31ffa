//! Models whose `model_type` no family has: what is like Llama answers as the family that it is, and all else
//! is refused by the first key or tensor that is not understood. The models are fixtures of known families
//! under an invented name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{BACKENDS, Expected, LIMITS, OneSequence};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use throng_core::request::SamplingParams;
use throng_model::load::LoadError;
use throng_model::{LoadOptions, LoadedModel, RunnerOptions, load};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A fixture under an invented name, and its configuration changed.
fn renamed(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_slice(&config).unwrap();
    config.insert("model_type".to_owned(), json!("novel9"));
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), json!(config).to_string()).unwrap();
    std::fs::copy(fixture(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    folder
}

fn open(folder: &Path) -> Result<LoadedModel, LoadError> {
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {})
}

fn refusal(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> String {
    let folder = renamed(name, change);
    open(folder.path()).err().unwrap_or_else(|| panic!("{name} loaded")).to_string()
}

type Change = Box<dyn FnOnce(&mut Map<String, Value>)>;

/// The families that differ from Llama only in what their files say, and those that do not.
#[test]
fn what_is_like_llama_answers_as_transformers_do() {
    let like_llama =
        ["llama", "llama-linear-bias", "llama3-rope-tied", "qwen2", "qwen2-yarn", "qwen3", "qwen3-moe"];
    for name in like_llama {
        let folder = renamed(name, |_| {});
        let model = open(folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.config.family, "unnamed");
        let named = open(&fixture(name)).unwrap();
        let mut config = (*model.config).clone();
        config.family = named.config.family;
        assert_eq!(config, *named.config, "{name}");
        let expected = Expected::read(&fixture(name));
        let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
        for backend in BACKENDS {
            let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits: LIMITS }).unwrap();
            let mut sequence = OneSequence::new(&expected.input_ids, Arc::new(sampling.clone()));
            sequence.prefill(&mut *runner, 13, |_| {});
            sequence.decode(&mut *runner, expected.greedy.len() - 1);
            assert_eq!(sequence.output(), expected.greedy, "{name} on {backend:?}");
        }
    }
}

#[test]
fn windows_are_those_that_the_file_names() {
    let types = json!(["sliding_attention", "full_attention"]);
    let folder = renamed("llama", |config| {
        config.insert("layer_types".to_owned(), types);
        config.insert("sliding_window".to_owned(), json!(24));
    });
    let model = open(folder.path()).unwrap();
    let windows: Vec<_> = model.config.attentions().map(|attention| attention.sliding_window).collect();
    assert_eq!(windows, [Some(24), None]);
}

#[test]
fn all_else_is_refused_by_what_is_not_understood() {
    let with = |key: &'static str, value: Value| {
        move |config: &mut Map<String, Value>| {
            config.insert(key.to_owned(), value);
        }
    };
    let without = |key: &'static str| {
        move |config: &mut Map<String, Value>| {
            config.remove(key);
        }
    };
    let cases: [(&str, Change, &str); 14] = [
        ("llama", Box::new(with("swiglu_limit", json!(7.0))), "swiglu_limit = 7.0"),
        ("llama", Box::new(with("layer_types", json!(["full_attention", "ssm"]))), "layer_types"),
        ("llama", Box::new(with("sliding_window", json!(64))), "sliding_window = 64"),
        ("llama", Box::new(with("hidden_act", json!("relu2"))), "hidden_act = relu2"),
        (
            "llama",
            Box::new(with("rope_parameters", json!({"rope_theta": 1e4, "spin": 2}))),
            "rope_parameters.spin",
        ),
        ("llama", Box::new(without("rms_norm_eps")), "rms_norm_eps"),
        ("llama", Box::new(without("rope_parameters")), "rope_theta"),
        ("qwen3-moe", Box::new(without("norm_topk_prob")), "norm_topk_prob"),
        ("qwen3-moe", Box::new(with("n_group", json!(4))), "n_group"),
        ("qwen3-moe", Box::new(with("n_shared_experts", json!(1))), "n_shared_experts"),
        ("olmo2", Box::new(|_| {}), "the tensor model.layers.0.post_feedforward_layernorm.weight"),
        ("granite", Box::new(|_| {}), "attention_multiplier"),
        (
            "phi3",
            Box::new(without("original_max_position_embeddings")),
            "the tensor model.layers.0.mlp.gate_up_proj.weight",
        ),
        ("lfm2", Box::new(|_| {}), "the configuration lacks"),
    ];
    for (name, change, expected) in cases {
        let error = refusal(name, change);
        assert!(error.starts_with("not supported yet: novel9, "), "{name}: {error}");
        assert!(error.contains(expected), "{name}: {error}, expected {expected}");
    }
}
