//! The tensors that the forward pass is said to use are those that loading reads, and its least work equals
//! sums by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::safetensors::SafetensorsFolder;
use throng_checkpoint::{ByteTensor, TensorSource, TensorView};
use throng_core::scheduling::forward_work::{Steps, Work};
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::tensor_role::{TensorRole, tensor_roles};
use throng_model::{LoadOptions, LoadedModel};
use throng_testkit::tiny_model::TinyModel;

/// Counts how often each tensor was requested.
struct Counted<'a> {
    source: &'a dyn TensorSource,
    n_asked: Mutex<BTreeMap<String, usize>>,
}

impl TensorSource for Counted<'_> {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let found = self.source.tensor(name);
        if found.is_some() {
            *self.n_asked.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        }
        found
    }

    fn names(&self) -> Vec<&str> {
        self.source.names()
    }

    fn byte_tensor(&self, name: &str) -> Option<ByteTensor<'_>> {
        self.source.byte_tensor(name)
    }
}

/// Loading requests every tensor once to add up their sizes, and again to read it.
fn read_by_loading(architecture: &Architecture, source: &dyn TensorSource, what: &str) -> BTreeSet<String> {
    let counted = Counted { source, n_asked: Mutex::default() };
    let loaded = DecoderWeights::load(&ReferenceBackend, architecture, &counted, &mut |_| {});
    loaded.unwrap_or_else(|error| panic!("{what}: {error}"));
    let n_asked = counted.n_asked.into_inner().unwrap();
    n_asked.into_iter().filter_map(|(name, n)| (n > 1).then_some(name)).collect()
}

fn check(architecture: &Architecture, source: &dyn TensorSource, what: &str) {
    let used: BTreeSet<String> = tensor_roles(architecture, source).into_keys().collect();
    assert_eq!(used, read_by_loading(architecture, source, what), "{what}");
}

#[test]
fn a_tensor_has_a_role_exactly_when_loading_reads_it() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut n_models = 0;
    for folder in std::fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()) {
        // A draft head says that it is a Llama and has none of its layers.
        if folder.ends_with("eagle3") {
            continue;
        }
        let Ok(source) = SafetensorsFolder::open(&folder) else { continue };
        let Ok(json) = std::fs::read(folder.join("config.json")) else { continue };
        // Codes and scales are not among the tensors that have roles.
        if json.windows(19).any(|key| key == b"quantization_config") {
            continue;
        }
        let Ok(architecture) = Architecture::from_config_json(&json) else { continue };
        check(&architecture, &source, &folder.display().to_string());
        n_models += 1;
    }
    assert!(n_models >= 13, "{n_models} families");
    for experts in [(0, 0), (4, 2)] {
        let architecture = if experts.0 > 0 { "qwen3moe" } else { "qwen3" };
        let gguf =
            Gguf::parse(&TinyModel { architecture, experts, ..TinyModel::default() }.gguf(Format::Q8_0))
                .unwrap();
        let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
        check(&architecture, &gguf, "GGUF");
    }
}

fn model(tiny: &TinyModel, format: Format) -> LoadedModel {
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    load_bytes("tiny", &tiny.gguf(format), &options, &mut |_| {}).unwrap()
}

const STEPS: Steps = Steps { n_steps: 3, n_tokens: 100, n_logit_steps: 2, n_logits: 5 };

#[test]
fn a_dense_model_multiplies_every_matrix_and_looks_embeddings_up() {
    let tiny = TinyModel { n_layers: 2, ..TinyModel::default() };
    // 8 query heads and 2 + 2 others of 32; gate, up and down of 256.
    let layer = (12 * 32 * 256 + 256 * 256 + 3 * 256 * 256) as f64;
    let (layers, output) = (2.0 * layer, 64.0 * 256.0);
    let operations = 2.0 * (100.0 * layers + 5.0 * output);
    let q8_0 = model(&tiny, Format::Q8_0);
    let bytes = |element: f64| 3.0 * layers * element + 2.0 * output * element;
    let work = q8_0.forward_work(KvDtype::F16);
    let expected = Work { int8_operations: operations, bytes: bytes(34.0 / 32.0), ..Work::default() };
    assert_eq!(work.of(STEPS), expected);
    assert_eq!(work.step_bytes(), (layers + output) * 34.0 / 32.0);
    let expected = Work { f32_operations: operations, bytes: bytes(4.0), ..Work::default() };
    assert_eq!(model(&tiny, Format::F32).forward_work(KvDtype::F16).of(STEPS), expected);
    let uses = q8_0.tensor_roles();
    assert_eq!(uses["token_embd.weight"], TensorRole::Lookup);
    assert_eq!(uses["output.weight"], TensorRole::Output);
    assert_eq!(uses["blk.1.attn_q.weight"], TensorRole::Product);
    assert_eq!(uses["blk.1.attn_norm.weight"], TensorRole::Vector);
}

#[test]
fn a_token_reads_the_experts_that_it_uses() {
    let tiny = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..TinyModel::default() };
    let work = model(&tiny, Format::Q4_0).forward_work(KvDtype::F16);
    let attention = (12 * 32 * 256 + 256 * 256) as f64;
    let experts = 2.0 * (3 * 256 * 256) as f64;
    let (router, output) = ((8 * 256) as f64, (64 * 256) as f64);
    let got = work.of(Steps { n_steps: 1, n_tokens: 1, n_logit_steps: 1, n_logits: 1 });
    assert_eq!(got.int8_operations, 2.0 * (attention + experts + output));
    assert_eq!(got.f32_operations, 2.0 * router);
    assert_eq!(got.bytes, (attention + experts + output) * 18.0 / 32.0 + router * 4.0);
}

#[test]
fn keys_and_values_are_read_as_far_as_a_layer_sees() {
    let work =
        |dtype| model(&TinyModel { n_layers: 3, ..TinyModel::default() }, Format::Q8_0).forward_work(dtype);
    // Three layers, two heads of 32, keys and values.
    assert_eq!(work(KvDtype::F16).kv_bytes(0), (3 * 2 * 32 * 2 * 2) as f64);
    assert_eq!(work(KvDtype::F32).kv_bytes(99), (100 * 3 * 2 * 32 * 2 * 4) as f64);
    assert_eq!(work(KvDtype::Q8_0).kv_bytes(9), (10 * 3 * 2 * 34 * 2) as f64);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mistral-sliding");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let sliding = throng_model::load(&folder, &options, &mut |_| {}).unwrap();
    let window = sliding.config.attentions().next().unwrap().sliding_window.unwrap() as u64;
    let work = sliding.forward_work(KvDtype::F16);
    assert!(sliding.config.attentions().all(|layer| layer.sliding_window == Some(window as usize)));
    assert_eq!(work.kv_bytes(10 * window), work.kv_bytes(window - 1));
    assert!(work.kv_bytes(window - 2) < work.kv_bytes(window - 1));
}
