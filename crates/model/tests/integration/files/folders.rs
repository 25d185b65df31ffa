//! Folders as people have them: keys that nothing reads, Python's JSON, tensors of any type, experts one by
//! one, folders that generate no text, GGUF files inside, and files that are damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{Expected, LIMITS, OneSequence};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use throng_core::request::SamplingParams;
use throng_kernels::quant::Format;
use throng_model::load::LoadError;
use throng_model::pooling::{ClassifierActivation, PoolingOutput};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// A stored tensor.
#[derive(Clone)]
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Opens without preparing weights, as `throng inspect` does.
fn inspect(path: &Path) -> Result<LoadedModel, LoadError> {
    load(path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {})
}

fn refusal(path: &Path) -> String {
    inspect(path).err().expect("the folder is refused").to_string()
}

fn read(path: &Path) -> Vec<Stored> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |(name, tensor): (String, TensorView<'_>)| Stored {
        name,
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
        data: tensor.data().to_vec(),
    };
    tensors.tensors().into_iter().map(stored).collect()
}

fn write(path: &Path, tensors: &[Stored]) {
    let views =
        tensors.iter().map(|t| (&t.name, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

/// A copy of a fixture with another configuration and other tensors.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(Vec<Stored>) -> Vec<Stored>,
) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut map = serde_json::from_slice(&std::fs::read(fixture(name).join("config.json")).unwrap()).unwrap();
    config(&mut map);
    std::fs::write(folder.path().join("config.json"), map.to_string()).unwrap();
    write(&folder.path().join("model.safetensors"), &tensors(read(&fixture(name).join("model.safetensors"))));
    folder
}

fn more(name: &str, dtype: Dtype, n: usize) -> Stored {
    let bytes = match dtype {
        Dtype::I64 => 8,
        Dtype::BOOL => 1,
        _ => 2,
    };
    Stored { name: name.to_owned(), dtype, shape: vec![n], data: vec![0; n * bytes] }
}

fn greedy(path: &Path, expected: &Expected) -> Vec<u32> {
    let model = inspect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let options = RunnerOptions { backend: BackendKind::Reference, n_threads: 1, limits: LIMITS };
    let mut runner = model.runner(&options).unwrap();
    let mut sequence = OneSequence::new(
        &expected.input_ids,
        Arc::new(SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() }),
    );
    sequence.prefill(&mut *runner, 128, |_| {});
    sequence.decode(&mut *runner, 8);
    sequence.output().to_vec()
}

#[test]
fn integer_buffers_are_passed_over() {
    let folder = changed(
        "bert-reranker",
        |_| {},
        |mut tensors| {
            tensors.push(more("bert.embeddings.position_ids", Dtype::I64, 16));
            tensors.push(more("bert.embeddings.flags", Dtype::BOOL, 3));
            tensors
        },
    );
    let model = inspect(folder.path()).unwrap();
    assert_eq!(model.unread_tensors(), ["bert.embeddings.flags"]);
    assert_eq!(model.config, inspect(&fixture("bert-reranker")).unwrap().config);
}

#[test]
fn tensors_that_nothing_reads_are_named_and_missing_ones_refuse() {
    let folder = changed(
        "llama",
        |_| {},
        |mut tensors| {
            tensors.push(more("mtp.layers.0.norm.weight", Dtype::BF16, 8));
            tensors.push(more("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::BF16, 8));
            tensors
        },
    );
    assert_eq!(inspect(folder.path()).unwrap().unread_tensors(), ["mtp.layers.0.norm.weight"]);
    let folder = changed("llama", |_| {}, |_| vec![more("a", Dtype::BF16, 8)]);
    assert_eq!(refusal(folder.path()), "the model lacks the tensor model.embed_tokens.weight");
    let folder = changed(
        "llama",
        |_| {},
        |mut tensors| {
            let norm = tensors.iter_mut().find(|t| t.name == "model.norm.weight").unwrap();
            *norm = more("model.norm.weight", Dtype::I64, norm.shape[0]);
            tensors
        },
    );
    assert!(refusal(folder.path()).starts_with("tensor model.norm.weight has element type I64 (F32, F16"));
    let every =
        ["llama", "gemma4-ple", "deepseek-v3", "gpt-oss-mxfp4", "qwen3-fp8", "qwen3-next", "granite-hybrid"];
    for name in every {
        let model = inspect(&fixture(name)).unwrap();
        // Layers that predict further tokens are in the file of Qwen3-Next, and nothing reads them.
        let unread = model.unread_tensors().iter().filter(|tensor| !tensor.starts_with("mtp."));
        assert_eq!(unread.count(), 0, "{name}: {:?}", model.unread_tensors());
    }
}

#[test]
fn keys_that_nothing_reads_are_passed_over_and_named() {
    let set = |config: &mut Value| {
        config["output_gate_type"] = json!("swish");
        config["_attn_implementation_autoset"] = json!(true);
        config["unsloth_fixed"] = json!(true);
        config["aux_loss_alpha"] = json!(0.001);
    };
    let model_of = |name: &str| inspect(changed(name, set, |tensors| tensors).path()).unwrap();
    for name in ["llama", "deepseek-v3", "gemma4", "qwen3-5", "lfm2", "granite", "modernbert-mean"] {
        let model = model_of(name);
        assert_eq!(model.unread_keys(), ["output_gate_type"], "{name}");
        assert!(model.has_named_family());
    }
    let matters = |config: &mut Value| config["logit_scale"] = json!(0.0625);
    for name in ["llama", "qwen2", "gemma2", "mixtral", "granite"] {
        let folder = changed(name, matters, |tensors| tensors);
        assert!(refusal(folder.path()).contains("logit_scale = 0.0625"), "{name}");
    }
}

#[test]
fn json_is_read_as_python_writes_it() {
    let folder = changed("nemotron-h", |_| {}, |tensors| tensors);
    let path = folder.path().join("config.json");
    let plain = inspect(folder.path()).unwrap().config;
    let json = std::fs::read_to_string(&path).unwrap();
    let pythons = json.replacen('{', r#"{"time_step_limit": [0.0, Infinity], "_note": NaN, "#, 1);
    std::fs::write(&path, pythons).unwrap();
    assert_eq!(inspect(folder.path()).unwrap().config, plain);
    std::fs::write(&path, json.replacen('{', r#"{"time_step_limit": [0.0, NaN], "#, 1)).unwrap();
    assert!(refusal(folder.path()).contains("limits of time"));
    let key = "\"layer_norm_epsilon\":";
    std::fs::write(&path, json.replacen(key, &format!("{key}-Infinity,\"_was\":"), 1)).unwrap();
    assert!(refusal(folder.path()).contains("norm epsilon"));
}

/// `layers_block_type` in place of the pattern, and an older name of the size of a head.
#[test]
fn nemotrons_spellings_mean_the_same() {
    let plain = inspect(&fixture("nemotron-h")).unwrap().config;
    let words = ["mamba", "moe", "mamba", "attention", "moe", "mlp"];
    let spelled = |config: &mut Value| {
        let map = config.as_object_mut().unwrap();
        let size = map.remove("head_dim").unwrap();
        for key in ["hybrid_override_pattern", "num_hidden_layers"] {
            map.remove(key);
        }
        map.insert("attention_head_dim".to_owned(), size);
        map.insert("layers_block_type".to_owned(), json!(words));
    };
    let folder = changed("nemotron-h", spelled, |tensors| tensors);
    assert_eq!(inspect(folder.path()).unwrap().config, plain);
    let folder = changed("nemotron-h", |config| config["hybrid_override_pattern"] = json!("MEM*EX"), |t| t);
    assert!(refusal(folder.path()).contains("block of a layer = X"));
}

#[test]
fn a_decoder_that_is_not_causal_sees_all_tokens_or_is_refused() {
    let not_causal = |config: &mut Value| config["is_causal"] = json!(false);
    let folder = changed("qwen3-embedding", not_causal, |tensors| tensors);
    // Without the files that say how it is pooled it would generate text.
    assert!(refusal(folder.path()).contains("attention in both directions"));
    for file in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        let to = folder.path().join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(fixture("qwen3-embedding").join(file), to).unwrap();
    }
    let model = inspect(folder.path()).unwrap();
    assert!(model.config.is_bidirectional() && model.pooler.is_some());
    let folder = changed("mistral-sliding", not_causal, |tensors| tensors);
    assert!(refusal(folder.path()).contains("is_causal = false"));
}

fn headless(tensors: Vec<Stored>) -> Vec<Stored> {
    tensors.into_iter().filter(|tensor| tensor.name != "lm_head.weight").collect()
}

#[test]
fn what_generates_no_text_is_refused() {
    let folder = changed("llama", |_| {}, headless);
    assert!(refusal(folder.path()).contains("lacks the tensor lm_head.weight"));
    let tied = |config: &mut Value| config["tie_word_embeddings"] = json!(true);
    assert!(inspect(changed("llama", tied, headless).path()).is_ok());
    for class in ["LlamaForRewardModel", "LlamaForTokenClassification", "LlamaForCausalLMEagle3"] {
        let folder = changed("llama", |config| config["architectures"] = json!([class]), |tensors| tensors);
        let refusal = refusal(folder.path());
        assert!(refusal.contains(class) || refusal.contains("--draft-model"), "{refusal}");
    }
}

#[test]
fn a_cross_encoder_says_what_becomes_of_its_logits() {
    let activation = |key: &str, class: Value| {
        let folder = changed("bert-reranker", |config| config[key] = class, |tensors| tensors);
        inspect(folder.path()).map(|model| match model.pooler.unwrap().config.output {
            PoolingOutput::Labels { activation, .. } => activation,
            PoolingOutput::Embedding => panic!("a reranker has labels"),
        })
    };
    let older = "sbert_ce_default_activation_function";
    let found = activation(older, json!("torch.nn.modules.linear.Identity")).unwrap();
    assert_eq!(found, ClassifierActivation::Identity);
    let found = activation(older, json!("torch.nn.modules.activation.Sigmoid")).unwrap();
    assert_eq!(found, ClassifierActivation::Sigmoid);
    let newer = json!({"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"});
    assert_eq!(activation("sentence_transformers", newer).unwrap(), ClassifierActivation::Identity);
    assert_eq!(activation("spam", json!(null)).unwrap(), ClassifierActivation::Sigmoid);
    let refused = activation(older, json!("torch.nn.modules.activation.Tanh")).unwrap_err();
    assert!(refused.to_string().contains("Tanh"));
}

/// The experts of a tensor as one matrix each. `is_transposed`: `[experts, in, out]`.
fn one_by_one(tensors: Vec<Stored>, is_transposed: bool) -> Vec<Stored> {
    let mut single = Vec::new();
    for tensor in tensors {
        let Some((stem, kind)) =
            tensor.name.split_once("experts.").map(|(a, b)| (a.to_owned(), b.to_owned()))
        else {
            single.push(tensor);
            continue;
        };
        let (n_experts, element) = (tensor.shape[0], 4);
        let (rows, cols) = match is_transposed {
            true => (tensor.shape[2], tensor.shape[1]),
            false => (tensor.shape[1], tensor.shape[2]),
        };
        let at = |expert: usize, row: usize, col: usize| {
            let inner = if is_transposed { col * rows + row } else { row * cols + col };
            &tensor.data[(expert * rows * cols + inner) * element..][..element]
        };
        for expert in 0..n_experts {
            let part = |name: &str, first: usize, n: usize| Stored {
                name: format!("{stem}experts.{expert}.{name}.weight"),
                dtype: tensor.dtype,
                shape: vec![n, cols],
                data: (first..first + n)
                    .flat_map(|row| (0..cols).flat_map(move |col| at(expert, row, col).to_vec()))
                    .collect(),
            };
            match kind.as_str() {
                "gate_up_proj" => {
                    single.push(part("gate_proj", 0, rows / 2));
                    single.push(part("up_proj", rows / 2, rows / 2));
                }
                _ => single.push(part("down_proj", 0, rows)),
            }
        }
    }
    single
}

#[test]
fn experts_one_by_one_are_those_of_one_tensor() {
    for (name, is_transposed) in [("llama4", true), ("gemma4-moe", false)] {
        let expected = Expected::read(&fixture(name));
        let folder = changed(name, |_| {}, |tensors| one_by_one(tensors, is_transposed));
        assert_eq!(inspect(folder.path()).unwrap().unread_tensors(), [""; 0]);
        assert_eq!(greedy(folder.path(), &expected), expected.greedy[..9], "{name}");
    }
}

#[test]
fn the_gguf_file_of_a_folder_is_found_or_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("no config.json and no GGUF file"));
    let write =
        |name: &str| TinyModel::default().write_gguf(Format::Q8_0, &folder.path().join(name)).unwrap();
    write("tiny-Q8_0.gguf");
    // Beside it may be what the repository of the weights has, and a projector.
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    std::fs::write(folder.path().join("mmproj-F16.gguf"), "a projector").unwrap();
    assert_eq!(inspect(folder.path()).unwrap().name, "tiny-Q8_0");
    write("tiny-Q4_K_M.gguf");
    let refused = refusal(folder.path());
    assert!(
        refused.contains("2 GGUF files") && refused.ends_with("tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"),
        "{refused}"
    );
}

#[test]
fn a_damaged_file_is_named_with_what_to_do() {
    let folder = changed("llama", |_| {}, |tensors| tensors);
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let cases: [(&[u8], &str); 5] = [
        (&whole[..whole.len() / 2], "bring it again"),
        (&whole[..100], "bring it again"),
        (&whole[..4], "bring it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "a page of the web"),
    ];
    for (bytes, advice) in cases {
        std::fs::write(&path, bytes).unwrap();
        let refused = refusal(folder.path());
        assert!(refused.contains("model.safetensors") && refused.contains(advice), "{refused}");
    }
    std::fs::remove_file(&path).unwrap();
    let index = json!({"weight_map": {"a": "model-00001-of-00002.safetensors"}});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let refused = refusal(folder.path());
    assert!(
        refused.contains("model-00001-of-00002.safetensors: model.safetensors.index.json names"),
        "{refused}"
    );
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert!(refusal(folder.path()).contains("pytorch_model.bin is not read"));

    let gguf = folder.path().join("tiny.gguf");
    let whole = TinyModel::default().gguf(Format::Q8_0);
    let cases: [(&[u8], &str); 2] =
        [(&whole[..whole.len() / 2], "bring it again"), (b"<html>nothing</html>", "a page of the web")];
    for (bytes, advice) in cases {
        std::fs::write(&gguf, bytes).unwrap();
        let refused = refusal(&gguf);
        assert!(refused.contains("tiny.gguf") && refused.contains(advice), "{refused}");
    }
}
