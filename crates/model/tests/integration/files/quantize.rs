//! Quantization at load time: the same bits as a file with the same blocks, on any number of threads; which
//! tensors are quantized; and which models are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use tempfile::TempDir;
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_core::request::SamplingParams;
use throng_kernels::Isa;
use throng_kernels::quant::{Format, quantize_rows};
use throng_model::kv_cache::KvDtype;
use throng_model::load::LoadError;
use throng_model::quantization::{Quantization, QuantizeOptions};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

const ALL: [Quantization; 3] = [Quantization::Q8_0, Quantization::Q4_0, Quantization::Q4_K];

fn try_open(path: &Path, to: Option<Quantization>, n_threads: usize) -> Result<LoadedModel, LoadError> {
    let quantize = to.map(|to| QuantizeOptions { to, cache: None });
    load(path, &LoadOptions { prepare: Some(BackendKind::Cpu), n_threads, quantize }, &mut |_| {})
}

fn open(path: &Path, to: Option<Quantization>, n_threads: usize) -> LoadedModel {
    try_open(path, to, n_threads).unwrap()
}

/// The bits of all log-probabilities after each of a few tokens.
fn bits(model: &LoadedModel, backend: BackendKind) -> Vec<u32> {
    let vocabulary = model.config.vocabulary_size as u32;
    let sampling = SamplingParams {
        logprobs: Some(vocabulary),
        prompt_logprobs: Some(vocabulary),
        ..Default::default()
    };
    let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits: LIMITS }).unwrap();
    let tokens: Vec<u32> = (0..24).map(|i| (i * 37 + 5) % vocabulary).collect();
    let mut bits = Vec::new();
    OneSequence::new(&tokens, Arc::new(sampling)).prefill(&mut *runner, 24, |report| {
        let mut of_token: Vec<_> = report.top.iter().map(|top| (top.token, top.logprob.to_bits())).collect();
        of_token.sort_unstable();
        bits.extend(of_token.into_iter().map(|(_, bits)| bits));
    });
    bits
}

/// Converts a float file to a file whose tensors are in the formats that `model` has.
fn quantized_file(path: &Path, model: &LoadedModel) -> Vec<u8> {
    let gguf = Gguf::open(path).unwrap();
    let held: Vec<(Format, Vec<u8>)> = gguf
        .names()
        .into_iter()
        .map(|name| {
            let tensor = gguf.tensor(name).unwrap();
            let format = model.held_format(&tensor);
            if format == tensor.format {
                return (format, tensor.data.to_vec());
            }
            let mut blocks = vec![0; format.bytes_of(tensor.shape.iter().product()).unwrap()];
            let cols = *tensor.shape.last().unwrap();
            quantize_rows(Isa::best(), tensor.format, format, cols, tensor.data, &mut blocks);
            (format, blocks)
        })
        .collect();
    let tensors: Vec<TensorToWrite<'_>> = gguf
        .names()
        .into_iter()
        .zip(&held)
        .map(|(name, (format, data))| TensorToWrite {
            name,
            shape: gguf.tensor(name).unwrap().shape,
            format: *format,
            data,
        })
        .collect();
    let metadata: Vec<_> = gguf.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
    write(3, &metadata, &tensors)
}

/// Models: dense, with experts, and with rows that are no multiple of superblocks.
fn shapes() -> [TinyModel; 3] {
    [
        TinyModel { n_layers: 2, feed_forward: 512, ..Default::default() },
        TinyModel { architecture: "qwen3moe", experts: (4, 2), ..Default::default() },
        TinyModel { architecture: "llama", hidden: 96, feed_forward: 160, ..Default::default() },
    ]
}

fn write_shape(shape: &TinyModel, format: Format) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    shape.write_gguf(format, &path).unwrap();
    (folder, path)
}

#[test]
fn the_same_bits_as_a_file_with_the_same_blocks() {
    for (shape, format) in shapes().into_iter().zip([Format::BF16, Format::F32, Format::F16]) {
        let (folder, path) = write_shape(&shape, format);
        for to in ALL {
            let model = open(&path, Some(to), 2);
            let file = folder.path().join(format!("tiny-{to}.gguf"));
            std::fs::write(&file, quantized_file(&path, &model)).unwrap();
            let stored = open(&file, None, 2);
            assert_eq!(model.weight_summary(), stored.weight_summary());
            assert_eq!(
                model.default_kv_dtype(BackendKind::Reference),
                KvDtype::F16,
                "it is no model of f32 any more"
            );
            for backend in BACKENDS {
                assert!(
                    bits(&model, backend) == bits(&stored, backend),
                    "{} {to} {backend:?}",
                    shape.architecture
                );
            }
            assert!(bits(&open(&path, Some(to), 1), BackendKind::Cpu) == bits(&model, BackendKind::Cpu));
        }
    }
}

#[test]
fn the_output_matrix_gets_more_bits_and_routers_are_not_quantized() {
    let (_folder, path) = write_shape(&shapes()[1], Format::BF16);
    let held = |to: Quantization, name: &str| {
        let model = open(&path, Some(to), 1);
        model.held_format(&model.tensors().tensor(&format!("{name}.weight")).unwrap())
    };
    for (to, output) in [
        (Quantization::Q8_0, Format::Q8_0),
        (Quantization::Q4_0, Format::Q6_K),
        (Quantization::Q4_K, Format::Q6_K),
    ] {
        assert_eq!(held(to, "output"), output);
        for name in ["token_embd", "blk.0.attn_q", "blk.0.attn_output", "blk.0.ffn_down_exps"] {
            assert_eq!(held(to, name), to.format(), "{name}");
        }
        for name in ["blk.0.ffn_gate_inp", "blk.0.attn_norm", "output_norm"] {
            assert_eq!(held(to, name), Format::F32, "{name}");
        }
    }
}

#[test]
fn rows_that_are_no_multiple_of_superblocks_get_plain_blocks_and_are_reported() {
    let (_folder, path) = write_shape(&shapes()[2], Format::F16);
    let model = open(&path, Some(Quantization::Q4_K), 2);
    let report = model.quantize_report().unwrap();
    let formats: Vec<_> = report.formats.iter().map(|(format, n, _)| (*format, *n)).collect();
    // Q, K, V, gate and up have 96 columns, the output projection 256, down 160; the output matrix is in Q8_0.
    assert_eq!(formats, [(Format::Q5_0, 7), (Format::Q8_0, 1), (Format::Q4_K, 1)]);
    assert_eq!(report.n_kept, 0);
    let bytes: u64 = report.formats.iter().map(|(.., bytes)| bytes).sum();
    assert!(report.stored_bytes > 2 * bytes);

    let odd = TinyModel { architecture: "llama", feed_forward: 136, ..Default::default() };
    let (_folder, path) = write_shape(&odd, Format::F16);
    let model = open(&path, Some(Quantization::Q4_0), 2);
    assert_eq!(model.quantize_report().unwrap().n_kept, 1, "136 columns of down fit no block");
    assert!(open(&path, None, 2).quantize_report().is_none());
}

#[test]
fn folders_of_every_family_are_quantized_and_stay_close() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let (mut n_folders, mut n_changed, mut far) = (0, 0, Vec::new());
    for folder in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        if !folder.join("model.safetensors").exists() {
            continue;
        }
        n_folders += 1;
        let exact = bits(&open(&folder, None, 2), BackendKind::Reference);
        // Norms in the middle of a block, states that go from token to token and choices of positions pass the
        // rounding of weights on; the embeddings and logits of the reranker are nine times as large as those
        // of the same architecture.
        let is_sensitive =
            ["gemma4-ple", "gemma4-moe", "qwen3-next", "qwen3-5-moe", "qwen3-reranker", "glm-dsa"]
                .iter()
                .any(|name| folder.ends_with(name));
        let of_q8_0 = if is_sensitive { 0.1 } else { 0.05 };
        for (to, bound) in [(Quantization::Q8_0, of_q8_0), (Quantization::Q4_K, 0.5)] {
            let model = open(&folder, Some(to), 2);
            let found = bits(&model, BackendKind::Reference);
            let distance = |(a, b): (&u32, &u32)| f64::from((f32::from_bits(*a) - f32::from_bits(*b)).abs());
            let mean = exact.iter().zip(&found).map(distance).sum::<f64>() / exact.len() as f64;
            println!("{} {to}: {mean:.4}", folder.display());
            if mean >= bound {
                far.push(format!("{} {to}: {mean}", folder.display()));
            }
            n_changed += usize::from(mean > 0.0);
        }
    }
    assert!(far.is_empty(), "{far:?}");
    assert_eq!(n_folders, 76);
    // Rows of 40 elements fit no block.
    assert!(n_changed >= 2 * 17, "{n_changed}");
}

#[test]
fn a_model_that_is_quantized_already_is_refused() {
    let (_folder, path) = write_shape(&TinyModel::default(), Format::Q4_K);
    let error = try_open(&path, Some(Quantization::Q8_0), 1).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the model is quantized already (tensor blk.0.attn_k.weight is Q4_K): only models in F32, F16 and BF16 can be \
         quantized while they are loaded"
    );
}
