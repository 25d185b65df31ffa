//! Broken model files give a typed error or a model that runs, never a panic. Every bit of the header of a
//! small GGUF file and of a folder's `config.json` is flipped, the files are truncated, and any bytes stand
//! for weights of every format.

use std::path::Path;
use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use fastrand::Rng;
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::safetensors::SafetensorsFolder;
use throng_core::request::SamplingParams;
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_model::{LoadOptions, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// Loads weights and runs two tokens.
fn run(architecture: Architecture, tensors: &dyn TensorSource) -> Result<(), String> {
    let weights = DecoderWeights::load(&ReferenceBackend, &architecture, tensors, &mut |_| {});
    let weights = Arc::new(weights.map_err(|error| error.to_string())?);
    let limits = RunnerLimits {
        n_blocks: 2,
        kv_dtype: KvDtype::F32,
        max_batch_tokens: 2,
        max_batch_sequences: 1,
        max_sequence_tokens: None,
    };
    let config = Arc::new(architecture.config);
    let runner = ModelRunner::new(ReferenceBackend, config, weights, &limits);
    let mut runner = runner.map_err(|error| error.to_string())?;
    // NaN logits are a valid outcome here; the harness would refuse them.
    let finite = SamplingParams { max_tokens: 0, ..Default::default() };
    OneSequence::new(&[1, 2, 3], Arc::new(finite)).compute_only(&mut runner, 2);
    Ok(())
}

fn try_gguf(bytes: &[u8]) -> Result<(), String> {
    let gguf = Gguf::parse(bytes).map_err(|error| error.to_string())?;
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).map_err(|error| error.to_string())?;
    run(architecture, &gguf)
}

fn tiny(architecture: &'static str, experts: (usize, usize)) -> TinyModel {
    TinyModel {
        architecture,
        experts,
        hidden: 32,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        feed_forward: 32,
        vocabulary: 8,
        ..Default::default()
    }
}

/// The end of the header: after the last tensor's entry, before the padding.
fn header_length(bytes: &[u8]) -> usize {
    let last = bytes.windows(16).rposition(|window| window.starts_with(b"ffn_")).unwrap();
    last + 64
}

#[test]
fn flipped_bits_in_a_gguf_header_never_panic() {
    for model in [tiny("qwen3", (0, 0)), tiny("qwen3moe", (2, 1))] {
        let bytes = model.gguf(Format::Q8_0);
        try_gguf(&bytes).unwrap();
        let (mut n_refused, mut n_run) = (0, 0);
        for byte in 0..header_length(&bytes) {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << bit;
                match try_gguf(&flipped) {
                    Ok(()) => n_run += 1,
                    Err(_) => n_refused += 1,
                }
            }
        }
        println!("{}: {n_refused} flips refused, {n_run} run", model.architecture);
        assert!(n_refused > n_run);
    }
}

#[test]
fn a_gguf_file_cut_short_is_refused() {
    let bytes = tiny("qwen3", (0, 0)).gguf(Format::Q4_0);
    for length in (0..bytes.len()).step_by(7) {
        assert!(try_gguf(&bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn flipped_bits_in_a_configuration_never_panic() {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    for name in ["llama3-rope-tied", "gemma3", "qwen2-moe", "phi3-longrope"] {
        let json = std::fs::read(fixture(name).join("config.json")).unwrap();
        let tensors = SafetensorsFolder::open(&fixture(name)).unwrap();
        let try_config = |json: &[u8]| {
            let architecture = Architecture::from_config_json(json).map_err(|error| error.to_string())?;
            run(architecture, &tensors)
        };
        try_config(&json).unwrap();
        let mut n_refused = 0;
        for byte in 0..json.len() {
            for bit in [0, 1, 4] {
                let mut flipped = json.clone();
                flipped[byte] ^= 1 << bit;
                n_refused += usize::from(try_config(&flipped).is_err());
            }
            assert!(byte % 16 != 0 || try_config(&json[..byte]).is_err(), "{name}: {byte} bytes");
        }
        println!("{name}: {n_refused} of {} flips refused", 3 * json.len());
        assert!(n_refused > json.len());
    }
}

/// The seed of a test, which it prints.
fn rng() -> Rng {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("SEED={seed}");
    Rng::with_seed(seed)
}

/// Loads a model from its path and runs two tokens on every backend.
fn load_and_run(path: &Path) -> Result<(), String> {
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let model = load(path, &options, &mut |_| {}).map_err(|error| error.to_string())?;
    for backend in BACKENDS {
        let runner = model.runner(&RunnerOptions { backend, n_threads: 1, limits: LIMITS });
        let mut runner = runner.map_err(|error| error.to_string())?;
        let sampling = SamplingParams { max_tokens: 0, ..Default::default() };
        OneSequence::new(&[1, 2, 3], Arc::new(sampling)).compute_only(&mut *runner, 2);
    }
    Ok(())
}

/// No block has bytes that are not numbers, and no number, not even an infinite one or NaN, is more than a
/// wrong result.
#[test]
fn any_bytes_are_weights_of_every_format() {
    let mut rng = rng();
    let folder = tempfile::tempdir().unwrap();
    for format in Format::ALL.into_iter().filter(|format| format.ggml_number().is_some()) {
        for (architecture, experts) in [("qwen3", (0, 0)), ("qwen3moe", (2, 1))] {
            let mut bytes =
                TinyModel { architecture, experts, vocabulary: 8, ..Default::default() }.gguf(format);
            let start = Gguf::parse(&bytes).unwrap().headers().next().unwrap().data_start;
            bytes[start..].iter_mut().for_each(|byte| *byte = rng.u8(..));
            let path = folder.path().join(format!("{architecture}-{}.gguf", format.name()));
            std::fs::write(&path, &bytes).unwrap();
            load_and_run(&path).unwrap_or_else(|error| panic!("{format:?}: {error}"));
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// Checkpoints whose experts are MXFP4 and whose layers are FP8, through the whole loader.
#[test]
fn a_damaged_checkpoint_of_few_bits_never_panics() {
    let mut rng = rng();
    for name in ["gpt-oss-mxfp4", "qwen3-fp8"] {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let folder = tempfile::tempdir().unwrap();
        let (config, weights) = (folder.path().join("config.json"), folder.path().join("model.safetensors"));
        let json = std::fs::read(fixture.join("config.json")).unwrap();
        let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
        let n_header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        std::fs::write(&config, &json).unwrap();
        std::fs::write(&weights, &bytes).unwrap();
        load_and_run(folder.path()).unwrap();
        let (mut n_refused, n_trials) = (0, 120);
        for _ in 0..n_trials {
            let mut damaged = bytes.clone();
            let end = if rng.bool() { n_header } else { bytes.len() };
            damaged[rng.usize(..end)] ^= 1 << rng.u8(..8);
            std::fs::write(&weights, &damaged).unwrap();
            n_refused += usize::from(load_and_run(folder.path()).is_err());
            std::fs::write(&weights, &bytes[..rng.usize(..bytes.len())]).unwrap();
            assert!(load_and_run(folder.path()).is_err(), "{name} was loaded although it was cut");
            std::fs::write(&weights, &bytes).unwrap();
            let mut damaged = json.clone();
            damaged[rng.usize(..json.len())] ^= 1 << rng.u8(..7);
            std::fs::write(&config, &damaged).unwrap();
            n_refused += usize::from(load_and_run(folder.path()).is_err());
            std::fs::write(&config, &json).unwrap();
        }
        println!("{name}: {n_refused} of {} flips refused", 2 * n_trials);
        assert!(n_refused > n_trials / 4);
    }
}
