//! Opening models: the files beside the weights, nested configurations, and errors that name the fault.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::load::LoadError;
use throng_model::{BackendKind, LoadOptions, LoadedModel, VocabularySource, load};
use throng_testkit::tiny_model::TinyModel;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn try_open(path: &Path) -> Result<LoadedModel, LoadError> {
    let options = LoadOptions { prepare: Some(BackendKind::Reference), n_threads: 1, quantize: None };
    load(path, &options, &mut |_| {})
}

/// A copy of a fixture with its configuration and tensor names changed by these functions.
fn changed(
    name: &str,
    change: impl FnOnce(Value) -> Value,
    rename: impl Fn(&str) -> Option<String>,
) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::from_slice(&std::fs::read(fixture(name).join("config.json")).unwrap()).unwrap();
    std::fs::write(folder.path().join("config.json"), change(config).to_string()).unwrap();
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed: Vec<(String, TensorView<'_>)> =
        tensors.tensors().into_iter().filter_map(|(name, tensor)| Some((rename(&name)?, tensor))).collect();
    let bytes = safetensors::serialize(renamed, None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

fn set(key: &str, value: Value) -> impl FnOnce(Value) -> Value {
    move |mut config| {
        config[key] = value;
        config
    }
}

fn same(name: &str) -> Option<String> {
    Some(name.to_owned())
}

fn error(folder: &TempDir) -> String {
    try_open(folder.path()).err().expect("the model is refused").to_string()
}

#[test]
fn the_text_of_a_multimodal_model_is_found() {
    let nest = |mut text: Value| {
        text.as_object_mut().unwrap().remove("sliding_window_pattern");
        json!({"model_type": "gemma3", "eos_token_id": [7, 9], "text_config": text, "vision_config": {}})
    };
    let plain = try_open(&fixture("gemma3")).unwrap();
    let prefixes: [fn(&str) -> Option<String>; 2] = [
        |name| Some(format!("language_model.{name}")),
        |name| Some(name.replacen("model.", "model.language_model.", 1)),
    ];
    for prefix in prefixes {
        let folder = changed("gemma3", nest, prefix);
        let nested = try_open(folder.path()).unwrap();
        assert_eq!(nested.config, plain.config);
        assert_eq!(nested.eos_token_ids, [2, 7, 9], "those of both levels");
    }
}

#[test]
fn a_wrong_shape_is_named_with_what_was_expected() {
    let folder = changed("llama", set("intermediate_size", json!(161)), same);
    assert_eq!(
        error(&folder),
        "tensor model.layers.0.mlp.gate_proj.weight: expected shape [161, 64], found [160, 64]"
    );
    let folder = changed("qwen3", set("head_dim", json!(16)), same);
    assert_eq!(
        error(&folder),
        "tensor model.layers.0.self_attn.q_proj.weight: expected shape [64, 64], found [128, 64]"
    );
    let folder = changed("llama", set("vocab_size", json!(319)), same);
    assert_eq!(error(&folder), "tensor model.embed_tokens.weight: expected shape [319, 64], found [320, 64]");
}

#[test]
fn a_missing_tensor_is_named() {
    let folder =
        changed("llama", |config| config, |name| (!name.contains("1.mlp.down")).then(|| name.to_owned()));
    assert_eq!(error(&folder), "the model lacks the tensor model.layers.1.mlp.down_proj.weight");
}

#[test]
fn invalid_sizes_are_refused_before_anything_is_allocated() {
    let cases = [
        (
            "num_hidden_layers",
            json!(4_000_000_000u64),
            "number of layers = 4000000000, expected between 1 and 4096",
        ),
        ("num_hidden_layers", json!(0), "number of layers = 0"),
        ("hidden_size", json!(1u64 << 40), "hidden size = 1099511627776"),
        ("num_attention_heads", json!(0), "number of attention heads = 0"),
        ("num_key_value_heads", json!(3), "number of key-value heads = 3, expected a divisor of the 4"),
        ("hidden_size", json!(-1), "hidden_size = -1, expected a size"),
        ("hidden_size", json!("64"), "expected a size"),
        ("rms_norm_eps", json!(-1.0), "norm epsilon = -1"),
        ("max_position_embeddings", json!(1u64 << 60), "context length"),
        ("head_dim", json!(0), "head size = 0"),
        (
            "rope_parameters",
            json!({"rope_type": "spiral", "factor": 2.0}),
            "not supported yet: rope_type = spiral",
        ),
        ("rope_parameters", json!({"rope_type": "yarn"}), "lacks factor of the rope scaling"),
        ("rope_parameters", json!({"rope_theta": 0.0}), "rotation"),
        (
            "hidden_act",
            json!("relu"),
            "not supported yet: hidden_act = relu (supported: silu, gelu, gelu_pytorch_tanh)",
        ),
    ];
    for (key, value, expected) in cases {
        let found = error(&changed("llama", set(key, value), same));
        assert!(found.contains(expected), "{key}: {found}");
    }
}

#[test]
fn keys_that_could_change_the_model_are_refused_by_name() {
    let found = error(&changed("olmo3", set("swiglu_limit", json!(7.0)), same));
    assert_eq!(
        found,
        "not supported yet: swiglu_limit = 7.0 (the configuration of olmo3 has a key whose meaning is not known)"
    );
    let found = error(&changed("glm4-moe", set("n_group", json!(2)), same));
    assert_eq!(found, "not supported yet: n_group = 2 (supported: 1)");
    let folder = changed("qwen3-vl", set("text_config", json!({"model_type": "qwen4_text"})), same);
    assert!(error(&folder).starts_with("not supported yet: qwen4_text (supported: llama, "));
}

fn named(model: &LoadedModel) -> Vec<(&str, &str)> {
    model.chat_templates.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect()
}

#[test]
fn files_beside_the_weights_are_read() {
    let folder = changed("llama", |config| config, same);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let model = try_open(folder.path()).unwrap();
    assert!(matches!(model.vocabulary, VocabularySource::None));
    assert!(model.chat_templates.is_empty());
    assert_eq!((model.eos_token_ids, model.bos_token_id), (vec![2], Some(1)));
    assert_eq!(model.name, folder.path().file_name().unwrap().to_string_lossy());

    write(
        "generation_config.json",
        r#"{"eos_token_id": [5, 2], "temperature": 0.6, "top_k": 20, "top_p": 0.95}"#,
    );
    write("tokenizer.json", "{}");
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "x", "template": "X"}, {"name": "default", "template": "D"}]}"#,
    );
    let model = try_open(folder.path()).unwrap();
    assert_eq!(named(&model), [("default", "D"), ("x", "X")]);
    assert_eq!(model.eos_token_ids, [2, 5]);
    let defaults = model.generation_defaults;
    assert_eq!((defaults.temperature, defaults.top_k, defaults.min_p), (Some(0.6), Some(20), None));
    let VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config } = model.vocabulary else {
        panic!("a tokenizer stands in the folder")
    };
    assert!(tokenizer_json == b"{}" && tokenizer_config.is_some());

    write("tokenizer_config.json", "{}");
    write("chat_template.json", r#"{"chat_template": "C"}"#);
    assert_eq!(named(&try_open(folder.path()).unwrap()), [("default", "C")]);
    write("chat_template.jinja", "J");
    assert_eq!(named(&try_open(folder.path()).unwrap()), [("default", "J")]);
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "T");
    write("additional_chat_templates/notes.txt", "no template");
    assert_eq!(named(&try_open(folder.path()).unwrap()), [("default", "J"), ("tool_use", "T")]);
    write("generation_config.json", "[]");
    assert!(error(&folder).contains("generation_config.json"));
}

#[test]
fn a_gguf_file_has_configuration_and_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny-Q8_0.gguf");
    let tiny = TinyModel { vocabulary: 288, with_tokenizer: true, ..Default::default() };
    tiny.write_gguf(Format::Q8_0, &path).unwrap();
    let model = try_open(&path).unwrap();
    assert_eq!((model.name.as_str(), model.bos_token_id), ("tiny-Q8_0", Some(256)));
    assert_eq!(model.eos_token_ids, [258]);
    assert!(model.chat_templates["default"].contains("<|im_start|>"));
    let VocabularySource::Gguf(gguf) = &model.vocabulary else { panic!("the metadata has the vocabulary") };
    assert_eq!(gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 288);
    assert_eq!(model.config.family, "qwen3");
}

#[test]
fn the_default_kv_dtype_follows_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (format, dtype) in
        [(Format::F32, KvDtype::F32), (Format::BF16, KvDtype::F16), (Format::Q4_K, KvDtype::F16)]
    {
        let path = folder.path().join("tiny.gguf");
        TinyModel::default().write_gguf(format, &path).unwrap();
        let model = try_open(&path).unwrap();
        assert_eq!(model.default_kv_dtype(BackendKind::Reference), dtype, "{format:?}");
        let layout = model.kv_layout(dtype, 3);
        assert_eq!(layout.bytes_per_token(), Some(2 * 2 * dtype.bytes_of(32).unwrap()));
        assert_eq!(model.weight_summary().formats[0].0, format);
    }
}

#[test]
fn paths_that_are_not_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(error(&folder).contains("has no config.json"));
    let missing = try_open(&folder.path().join("nothing")).err().unwrap().to_string();
    assert!(missing.ends_with("does not exist"), "{missing}");
    let text = folder.path().join("readme.txt");
    std::fs::write(&text, "hello").unwrap();
    assert!(try_open(&text).err().unwrap().to_string().ends_with("is neither a folder nor a .gguf file"));
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt_neox"}"#).unwrap();
    assert!(error(&folder).starts_with("not supported yet: gpt_neox (supported: llama, mistral, "));
}
