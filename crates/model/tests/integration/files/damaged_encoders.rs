//! The files that say how an encoder's outputs become a vector (`modules.json`, `1_Pooling/config.json` and
//! the files beside them), damaged everywhere: the model is refused with an error that names a file of its
//! folder, or gives vectors.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};

const PROMPTS: &str = "config_sentence_transformers.json";

/// A copy of a fixture with two dense layers, and prompts.
fn model() -> TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embeddinggemma");
    let folder = tempfile::tempdir().unwrap();
    for module in ["1_Pooling", "2_Dense", "3_Dense"] {
        fs::create_dir(folder.path().join(module)).unwrap();
    }
    for name in [
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    ] {
        fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
    }
    let prompts = json!({"prompts": {"query": "task: search | query: ", "document": "text: "}, "default_prompt_name": "query"});
    fs::write(folder.path().join(PROMPTS), prompts.to_string()).unwrap();
    folder
}

/// Loads the folder and asks for a vector.
fn try_model(folder: &Path) -> Result<(), String> {
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let refused = |error: String| {
        assert!(
            error.contains(&*folder.to_string_lossy()) || error.contains("tensor"),
            "names no file: {error}"
        );
        assert!(error.len() < 1000, "a short message");
        Err(error)
    };
    let model = match load(folder, &options, &mut |_| {}) {
        Ok(model) => model,
        Err(error) => return refused(error.to_string()),
    };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits: crate::vectors::LIMITS };
    let mut runner = match model.runner(&options) {
        Ok(runner) => runner,
        Err(error) => return Err(error.to_string()),
    };
    let vectors = crate::vectors::step(&mut *runner, &[crate::vectors::whole(&[5, 6, 7])]);
    assert!(vectors[0].is_some(), "a vector of the whole text");
    Ok(())
}

#[test]
fn files_of_an_encoder_cut_or_flipped_anywhere_are_refused_or_read() {
    let folder = model();
    try_model(folder.path()).unwrap();
    for name in
        ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json", PROMPTS]
    {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        let n_needed = whole.trim_ascii_end().len();
        let mut n_refused = 0;
        for byte in 0..n_needed {
            if byte % 8 == 0 {
                fs::write(&path, &whole[..byte]).unwrap();
                try_model(folder.path()).expect_err("it was cut");
            }
            let mut damaged = whole.clone();
            damaged[byte] ^= 1 << (byte % 7);
            fs::write(&path, &damaged).unwrap();
            n_refused += usize::from(try_model(folder.path()).is_err());
        }
        println!("{name}: {n_refused} of {n_needed} flips refused");
        fs::write(&path, &whole).unwrap();
    }
    try_model(folder.path()).unwrap();
}

#[test]
fn crafted_modules_are_refused_by_name() {
    let folder = model();
    let refused = |name: &str, json: &str, reason: &str| {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, json).unwrap();
        let error = try_model(folder.path()).expect_err(reason);
        assert!(error.contains(name) && error.contains(reason), "{name}: {error}");
        fs::write(&path, whole).unwrap();
    };
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    let modules = |list: &[serde_json::Value]| serde_json::Value::from(list).to_string();
    refused("modules.json", "[]", "no pooling");
    refused("modules.json", &modules(&[module("Transformer", "")]), "no pooling");
    for outside in ["../1_Pooling", "/etc", "1_Pooling/../../x", ".."] {
        refused("modules.json", &modules(&[module("Pooling", outside)]), "leads out of the folder");
    }
    refused("modules.json", &modules(&[module("LSTM", "")]), "\"LSTM\" is not supported");
    let many = vec![module("Dense", "2_Dense"); 10_000];
    refused("modules.json", &modules(&many), "at most 16");
    refused("modules.json", &"[".repeat(100_000), "invalid type");
    refused("modules.json", "{}", "invalid type");
    refused("1_Pooling/config.json", "{}", "pooling");
    refused("1_Pooling/config.json", "[]", "invalid type");
    refused("1_Pooling/config.json", r#"{"pooling_mode": "weightedmean"}"#, "weightedmean");
    let two = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#;
    refused("1_Pooling/config.json", two, "not supported");
    refused("1_Pooling/config.json", r#"{"pooling_mode": "mean", "include_prompt": false}"#, "prompt");
    refused("2_Dense/config.json", r#"{"activation_function": "x.Softplus"}"#, "Softplus");
    let long = json!({"prompts": {"query": "x".repeat(1 << 20)}});
    refused(PROMPTS, &long.to_string(), "not a short text");
    refused(PROMPTS, r#"{"default_prompt_name": "other"}"#, "no prompt");
    for length in ["0", "-1", "1.5", "1e300", "\"8\"", "[]"] {
        let json = format!(r#"{{"max_seq_length": {length}}}"#);
        refused("sentence_bert_config.json", &json, "max_seq_length is not a number of tokens");
    }
    for length in ["3", "18446744073709551615", "null"] {
        let json = format!(r#"{{"max_seq_length": {length}}}"#);
        fs::write(folder.path().join("sentence_bert_config.json"), json).unwrap();
        try_model(folder.path()).unwrap();
    }
}
