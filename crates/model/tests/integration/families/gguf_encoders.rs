//! Embedding models and rerankers as the GGUF files that llama.cpp's converter would write for their
//! fixtures: keys, names, tables without the rows of padding, norm gains with 1 added. Compared with the
//! vectors of transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::vectors::{Expected, LIMITS, assert_close, step, whole};
use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_checkpoint::gguf::{GgufArray, GgufValue};
use throng_kernels::quant::Format;
use throng_model::load::LoadError;
use throng_model::pooling::{Pooling, PoolingOutput};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A converted file: its keys and tensors.
#[derive(Default)]
struct File {
    keys: Vec<(String, GgufValue)>,
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

/// Names before and after the layer's index, from and to.
type Names = &'static [(&'static str, &'static str)];

const BERT: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("classifier.dense", "cls"),
    ("classifier.out_proj", "cls.output"),
];

const NOMIC: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("emb_ln", "token_embd_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
    ("norm2", "layer_output_norm"),
];

const JINA: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("emb_ln", "token_embd_norm"),
    ("mixer.Wqkv", "attn_qkv"),
    ("mixer.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("norm2", "layer_output_norm"),
];

const MODERN: Names = &[
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.norm", "token_embd_norm"),
    ("final_norm", "output_norm"),
    ("attn_norm", "attn_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.Wo", "attn_output"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.Wi", "ffn_up"),
    ("mlp.Wo", "ffn_down"),
];

const DECODER: Names = &[
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("score", "cls.output"),
];

/// The norms of Gemma that have other places than Qwen's.
const GEMMA: Names = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

impl File {
    fn set(&mut self, key: &str, value: GgufValue) {
        self.keys.push((key.to_owned(), value));
    }

    /// The tensors of a checkpoint that have a name in `names`; the first name counts.
    fn add(&mut self, path: &Path, prefix: &str, names: &[(&str, &str)]) {
        let bytes = std::fs::read(path).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let name =
                name.trim_start_matches("bert.").trim_start_matches("roberta.").trim_start_matches("model.");
            let (layer, rest) = match name.strip_prefix(prefix).and_then(|rest| rest.split_once('.')) {
                Some((layer, rest)) => (format!("blk.{layer}."), rest),
                None => (String::new(), name),
            };
            let (stem, kind) = rest.rsplit_once('.').unwrap();
            let Some((_, to)) = names.iter().find(|(from, _)| *from == stem) else {
                assert!(stem.starts_with("pooler"), "{name} has no name");
                continue;
            };
            let tensor = (view.shape().to_vec(), view.data().to_vec());
            self.tensors.insert(format!("{layer}{to}.{kind}"), tensor);
        }
    }

    fn write(&self) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("encoder.gguf");
        let keys: Vec<(&str, GgufValue)> =
            self.keys.iter().map(|(key, value)| (&**key, value.clone())).collect();
        let tensors = self.tensors.iter();
        let tensors =
            tensors.map(|(name, (shape, data))| TensorToWrite { name, shape, format: Format::F32, data });
        std::fs::write(&path, write(3, &keys, &tensors.collect::<Vec<_>>())).unwrap();
        (folder, path)
    }
}

/// The keys that the converter writes for every model of these, and the tensors that `names` names.
fn convert(name: &str, architecture: &str, names: Names, prefix: &str) -> File {
    let folder = fixture(name);
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut file = File::default();
    file.set("general.architecture", GgufValue::String(architecture.to_owned()));
    let sizes = [
        ("max_position_embeddings", "context_length"),
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("head_dim", "attention.value_length"),
        ("sliding_window", "attention.sliding_window"),
        ("local_attention", "attention.sliding_window"),
        ("global_attn_every_n_layers", "attention.sliding_window_pattern"),
    ];
    for (from, to) in sizes {
        if let Some(size) = config[from].as_u64() {
            file.set(&format!("{architecture}.{to}"), GgufValue::U32(size as u32));
        }
    }
    let rope = |layers: &str| config["rope_parameters"][layers]["rope_theta"].clone();
    let numbers = [
        (config["layer_norm_eps"].clone(), "attention.layer_norm_epsilon"),
        (config["norm_eps"].clone(), "attention.layer_norm_epsilon"),
        (config["rms_norm_eps"].clone(), "attention.layer_norm_rms_epsilon"),
        (config["rope_theta"].clone(), "rope.freq_base"),
        (config["rope_parameters"]["rope_theta"].clone(), "rope.freq_base"),
        (rope("full_attention"), "rope.freq_base"),
        (rope("sliding_attention"), "rope.freq_base_swa"),
        (config["global_rope_theta"].clone(), "rope.freq_base"),
        (config["local_rope_theta"].clone(), "rope.freq_base_swa"),
    ];
    for (value, to) in numbers {
        if let Some(value) = value.as_f64() {
            file.set(&format!("{architecture}.{to}"), GgufValue::F32(value as f32));
        }
    }
    if !names.is_empty() {
        file.add(&folder.join("model.safetensors"), prefix, names);
    }
    file
}

fn encoder(name: &str, architecture: &str, names: Names, prefix: &str, pooling: Option<u32>) -> File {
    let mut file = convert(name, architecture, names, prefix);
    file.set(&format!("{architecture}.attention.causal"), GgufValue::Bool(false));
    if let Some(pooling) = pooling {
        file.set(&format!("{architecture}.pooling_type"), GgufValue::U32(pooling));
    }
    file
}

/// The first rows of the table are those of padding.
fn without_padding(mut file: File) -> File {
    let (shape, data) = file.tensors.get_mut("position_embd.weight").unwrap();
    data.drain(..2 * shape[1] * size_of::<f32>());
    shape[0] -= 2;
    let rows = shape[0] as u32;
    let (_, context) = file.keys.iter_mut().find(|(key, _)| key == "bert.context_length").unwrap();
    *context = GgufValue::U32(rows);
    file
}

fn embedding_gemma() -> File {
    let names: Vec<(&str, &str)> = GEMMA.iter().chain(DECODER).copied().collect();
    let mut file = encoder("embeddinggemma", "gemma-embedding", &[], "", Some(1));
    let folder = fixture("embeddinggemma");
    file.add(&folder.join("model.safetensors"), "layers.", &names);
    for (name, (_, data)) in &mut file.tensors {
        if name.ends_with("norm.weight") {
            for gain in data.as_chunks_mut::<4>().0 {
                *gain = (f32::from_le_bytes(*gain) + 1.0).to_le_bytes();
            }
        }
    }
    for dense in ["2_Dense", "3_Dense"] {
        let to = if dense == "2_Dense" { "dense_2" } else { "dense_3" };
        file.add(&folder.join(dense).join("model.safetensors"), "none.", &[("linear", to)]);
    }
    let windows = GgufArray::Bool(vec![true, false, true]);
    file.set("gemma-embedding.attention.sliding_window_pattern", GgufValue::Array(windows));
    file
}

fn open(path: &Path) -> Result<LoadedModel, LoadError> {
    load(path, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {})
}

#[test]
fn vectors_are_those_of_transformers() {
    let cases = [
        ("bert-cls", encoder("bert-cls", "bert", BERT, "encoder.layer.", Some(2)), Pooling::First),
        (
            "xlm-roberta-mean",
            without_padding(encoder("xlm-roberta-mean", "bert", BERT, "encoder.layer.", Some(1))),
            Pooling::Mean,
        ),
        (
            "xlm-roberta-reranker",
            without_padding(encoder("xlm-roberta-reranker", "bert", BERT, "encoder.layer.", None)),
            Pooling::First,
        ),
        ("nomic-bert", encoder("nomic-bert", "nomic-bert", NOMIC, "encoder.layers.", Some(1)), Pooling::Mean),
        ("jina-v3", encoder("jina-v3", "jina-bert-v3", JINA, "encoder.layers.", Some(1)), Pooling::Mean),
        (
            "modernbert-mean",
            encoder("modernbert-mean", "modern-bert", MODERN, "layers.", Some(1)),
            Pooling::Mean,
        ),
        ("embeddinggemma", embedding_gemma(), Pooling::Mean),
        (
            "qwen3-reranker",
            {
                let mut file = convert("qwen3-reranker", "qwen3", DECODER, "layers.");
                file.set("qwen3.pooling_type", GgufValue::U32(4));
                file
            },
            Pooling::Last,
        ),
        (
            "qwen3-embedding",
            {
                let mut file = convert("qwen3-embedding", "qwen3", DECODER, "layers.");
                file.set("qwen3.pooling_type", GgufValue::U32(3));
                file
            },
            Pooling::Last,
        ),
    ];
    for (name, file, pooling) in cases {
        let (_folder, path) = file.write();
        let model = open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let config = &model.pooler.as_ref().unwrap_or_else(|| panic!("{name} has no pooler")).config;
        assert_eq!(config.pooling, pooling, "{name}");
        let is_reranker = matches!(config.output, PoolingOutput::Labels { .. });
        assert_eq!(is_reranker, name.ends_with("reranker"), "{name}");
        assert_eq!(config.normalizes, !is_reranker, "{name}");
        let expected = Expected::read(&model, &fixture(name));
        for backend in [BackendKind::Reference, BackendKind::Cpu] {
            let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits: LIMITS }).unwrap();
            for (text, vector) in expected.texts.iter().zip(&expected.vectors) {
                let found = step(&mut *runner, &[whole(text)]).remove(0).unwrap();
                assert_close(&found, vector, &format!("{name} on {backend:?}"));
            }
        }
    }
}

#[test]
fn a_decoder_without_a_pooling_generates_text() {
    let (_folder, path) = convert("qwen3-embedding", "qwen3", DECODER, "layers.").write();
    assert!(open(&path).unwrap().pooler.is_none());
}

#[test]
fn what_a_head_lacks_is_named() {
    let names: Vec<(&str, &str)> = BERT.iter().copied().chain([("classifier", "cls.output")]).collect();
    let mut file = encoder("bert-reranker", "bert", &[], "", None);
    file.add(&fixture("bert-reranker").join("model.safetensors"), "encoder.layer.", &names);
    let (_folder, path) = file.write();
    let error = open(&path).err().unwrap().to_string();
    assert!(error.contains("the layer \"cls\" before the classifier"), "{error}");
    let (_folder, path) = encoder("bert-cls", "bert", BERT, "encoder.layer.", Some(7)).write();
    let error = open(&path).err().unwrap().to_string();
    assert!(error.contains("pooling_type is not supported"), "{error}");
}
