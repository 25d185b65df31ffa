//! Whole models whose layers are FP8 or MXFP8 and stay so in memory: they compute the bits that the same
//! numbers in floats do, dense and with experts, and take a quarter of the memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use fastrand::Rng;
use safetensors::tensor::TensorView as Stored;
use safetensors::{Dtype, serialize};
use serde_json::{Value, json};
use throng_core::request::SamplingParams;
use throng_kernels::quant::Format;
use throng_model::quantization::{CacheUse, Quantization, QuantizeOptions};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

const HIDDEN: usize = 256;
const N_EXPERTS: usize = 4;
const VOCABULARY: usize = 160;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// How layers are encoded: the configuration, the rows and columns that share a scale, and what kind of
/// scales they are.
struct Layout {
    name: &'static str,
    config: Value,
    block: [usize; 2],
    has_powers: bool,
    /// The type of the stored scales: F32, or exponents (E8M0).
    dtype: Dtype,
    held: Format,
}

fn layouts() -> Vec<Layout> {
    let compressed = |format: &str, weights: &Value| {
        json!({
            "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        })
    };
    let rows = json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "float"});
    let mx =
        json!({"num_bits": 8, "group_size": 32, "strategy": "group", "symmetric": true, "type": "float"});
    let blocks = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    let whole = usize::MAX;
    let (f32, fp8) = (Dtype::F32, Format::FP8);
    vec![
        Layout {
            name: "blocks",
            config: blocks.clone(),
            block: [128, 128],
            has_powers: false,
            dtype: f32,
            held: fp8,
        },
        Layout {
            name: "rows",
            config: compressed("float-quantized", &rows),
            block: [1, whole],
            has_powers: false,
            dtype: f32,
            held: fp8,
        },
        Layout {
            name: "one scale",
            config: json!({"quant_method": "fp8", "activation_scheme": "static"}),
            block: [whole, whole],
            has_powers: false,
            dtype: f32,
            held: fp8,
        },
        Layout {
            name: "blocks with exponents",
            config: blocks,
            block: [128, 128],
            has_powers: true,
            dtype: Dtype::F8_E8M0,
            held: Format::MXFP8,
        },
        Layout {
            name: "MXFP8",
            config: compressed("mxfp8-quantized", &mx),
            block: [1, 32],
            has_powers: true,
            dtype: Dtype::U8,
            held: Format::MXFP8,
        },
    ]
}

/// The number of a code of E4M3.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        0 => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code >= 128 { -size } else { size }
}

fn float_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A tensor of a layer: the end of its name, its type, its shape and its bytes.
type Part = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// A layer's tensors by their endings, and its numbers.
fn encode(layout: &Layout, [rows, cols]: [usize; 2], rng: &mut Rng) -> (Vec<Part>, Vec<f32>) {
    let codes: Vec<u8> = (0..rows * cols)
        .map(|_| {
            loop {
                let code = rng.u8(..);
                if code & 0x7F != 0x7F {
                    return code;
                }
            }
        })
        .collect();
    let [high, wide] = [layout.block[0].min(rows), layout.block[1].min(cols)];
    let (n_high, per_row) = (rows.div_ceil(high), cols.div_ceil(wide));
    let exponents: Vec<u8> = (0..n_high * per_row).map(|_| rng.u8(114..118)).collect();
    let scales: Vec<f32> = exponents
        .iter()
        .map(|e| f32::from_bits(u32::from(*e) << 23) * if layout.has_powers { 1.0 } else { 1.0 + rng.f32() })
        .collect();
    let number = |i: usize| e4m3(codes[i]) * scales[i / cols / high * per_row + i % cols / wide];
    let numbers = (0..codes.len()).map(number).collect();
    let (name, shape) = match layout.name {
        "one scale" => ("weight_scale", vec![]),
        "rows" | "MXFP8" => ("weight_scale", vec![n_high, per_row]),
        _ => ("weight_scale_inv", vec![n_high, per_row]),
    };
    let scale_bytes = if layout.dtype == Dtype::F32 { float_bytes(&scales) } else { exponents };
    let tensors =
        vec![("weight", Dtype::F8_E4M3, vec![rows, cols], codes), (name, layout.dtype, shape, scale_bytes)];
    (tensors, numbers)
}

/// Writes a small Qwen 3 twice: with encoded layers, and with their numbers in floats, in BF16 where that has
/// them.
fn write_both(folder: &Path, layout: &Layout, has_experts: bool, rng: &mut Rng) -> [PathBuf; 2] {
    let mut config = json!({
        "model_type": if has_experts { "qwen3_moe" } else { "qwen3" }, "hidden_size": HIDDEN,
        "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "max_position_embeddings": 256, "tie_word_embeddings": true, "attention_bias": false,
    });
    if has_experts {
        let fields = json!({
            "num_experts": N_EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": true,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        });
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    }
    let (mut encoded, mut floats) = (Tensors::new(), Tensors::new());
    let mut plain = |name: &str, shape: &[usize], rng: &mut Rng| {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| rng.f32() - 0.5).collect();
        for tensors in [&mut encoded, &mut floats] {
            tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), float_bytes(&numbers)));
        }
    };
    plain("model.embed_tokens.weight", &[VOCABULARY, HIDDEN], rng);
    plain("model.norm.weight", &[HIDDEN], rng);
    let mut linears = Vec::new();
    for layer in 0..2 {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        for name in ["input_layernorm", "post_attention_layernorm"] {
            plain(&at(&format!("{name}.weight")), &[HIDDEN], rng);
        }
        for name in ["q_norm", "k_norm"] {
            plain(&at(&format!("self_attn.{name}.weight")), &[64], rng);
        }
        linears.extend(
            [("q", HIDDEN), ("k", 128), ("v", 128), ("o", HIDDEN)]
                .map(|(name, rows)| (at(&format!("self_attn.{name}_proj")), [rows, HIDDEN])),
        );
        let mut mlp = |prefix: String, width: usize| {
            linears.extend(
                [("gate", [width, HIDDEN]), ("up", [width, HIDDEN]), ("down", [HIDDEN, width])]
                    .map(|(name, shape)| (format!("{prefix}.{name}_proj"), shape)),
            );
        };
        if has_experts {
            plain(&at("mlp.gate.weight"), &[N_EXPERTS, HIDDEN], rng);
            (0..N_EXPERTS).for_each(|expert| mlp(at(&format!("mlp.experts.{expert}")), 128));
        } else {
            mlp(at("mlp"), 384);
        }
    }
    for (name, shape) in linears {
        let (tensors, numbers) = encode(layout, shape, rng);
        for (end, dtype, shape, data) in tensors {
            encoded.insert(format!("{name}.{end}"), (dtype, shape, data));
        }
        let (dtype, data) = match layout.has_powers {
            true => (
                Dtype::BF16,
                numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
            ),
            false => (Dtype::F32, float_bytes(&numbers)),
        };
        floats.insert(format!("{name}.weight"), (dtype, shape.to_vec(), data));
    }
    let mut write = |name: &str, tensors: &Tensors| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            (name.clone(), Stored::new(*dtype, shape.clone(), data).unwrap())
        });
        std::fs::write(folder.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
        config["quantization_config"] = layout.config.clone();
        folder
    };
    let floats = write("floats", &floats);
    [write("encoded", &encoded), floats]
}

fn rng() -> Rng {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("SEED={seed}");
    Rng::with_seed(seed)
}

fn open(folder: &Path, quantize: Option<QuantizeOptions>) -> LoadedModel {
    let prepare = quantize.is_some().then_some(BackendKind::Cpu);
    load(folder, &LoadOptions { prepare, n_threads: 2, quantize }, &mut |_| {}).unwrap()
}

/// The bits of log-probabilities of all tokens after each of a prompt, computed in chunks, and after each of
/// some output tokens.
fn logprobs(model: &LoadedModel) -> Vec<u32> {
    let n = Some(VOCABULARY as u32);
    let sampling = SamplingParams { temperature: 0.0, logprobs: n, prompt_logprobs: n, ..Default::default() };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits: LIMITS };
    let mut runner = model.runner(&options).unwrap();
    let mut found = Vec::new();
    let prompt: Vec<u32> = (0..60).map(|i| i * 37 % VOCABULARY as u32).collect();
    let mut sequence = OneSequence::new(&prompt, Arc::new(sampling));
    sequence.prefill(&mut *runner, 45, |report| {
        let mut row = vec![f32::NAN; VOCABULARY];
        report.top.iter().for_each(|top| row[top.token as usize] = top.logprob);
        found.extend(row.into_iter().map(f32::to_bits));
    });
    sequence.decode(&mut *runner, 5);
    found.extend(sequence.output());
    assert!(found.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    found
}

#[test]
fn models_in_fp8_compute_the_bits_of_their_numbers_in_floats() {
    let mut rng = rng();
    for layout in layouts() {
        for has_experts in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let [encoded, floats] =
                write_both(folder.path(), &layout, has_experts, &mut rng).map(|folder| open(&folder, None));
            assert!(logprobs(&encoded) == logprobs(&floats), "{}, experts {has_experts}", layout.name);
        }
    }
}

#[test]
fn they_take_the_memory_of_their_files() {
    let mut rng = rng();
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let folders = write_both(folder.path(), &layout, true, &mut rng);
        let [encoded, floats] = folders.each_ref().map(|folder| open(folder, None));
        let [summary, of_floats] = [&encoded, &floats].map(LoadedModel::weight_summary);
        assert_eq!(summary.n_parameters, of_floats.n_parameters, "{}", layout.name);
        let of = |format: Format| summary.formats.iter().find(|(known, _)| *known == format).unwrap().1;
        let n_plain = of(Format::F32);
        let n_encoded = summary.n_parameters - n_plain / 4;
        // A scale of four bytes for 128 weights, or of one for 32.
        assert_eq!((of(layout.held), summary.n_bytes), (n_encoded * 33 / 32, n_plain + n_encoded * 33 / 32));
        let work = |model: &LoadedModel| model.forward_work(LIMITS.kv_dtype);
        let (few, many) = (work(&encoded).step_bytes(), work(&floats).step_bytes());
        assert!(few < 0.7 * many && few > 0.25 * many, "{}: {few} of {many}", layout.name);
    }
}

#[test]
fn they_are_quantized_and_kept_as_their_numbers_in_floats_are() {
    let mut rng = rng();
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let folders = write_both(folder.path(), &layout, false, &mut rng);
        for to in [Quantization::Q8_0, Quantization::Q4_K] {
            let cache = folder.path().join("cache");
            let quantize = |cache| Some(QuantizeOptions { to, cache });
            let [encoded, floats] = folders.each_ref().map(|folder| logprobs(&open(folder, quantize(None))));
            assert!(encoded == floats, "{} to {to:?}", layout.name);
            for used in [CacheUse::Written, CacheUse::Read] {
                let model = open(&folders[0], quantize(Some(cache.clone())));
                assert_eq!(model.quantize_report().unwrap().cache, used, "{} to {to:?}", layout.name);
                assert!(logprobs(&model) == encoded, "{} to {to:?}, {used:?}", layout.name);
            }
        }
    }
}

/// Whatever codes and scales are, NaN and infinite ones too, they are weights, and no number is more than a
/// wrong result.
#[test]
fn any_codes_and_scales_are_weights() {
    let mut rng = rng();
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let [encoded, _] = write_both(folder.path(), &layout, true, &mut rng);
        let path = encoded.join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let n_header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        // All of it at random, then one code or scale of a sound file.
        for n_changed in [usize::MAX, 1, 1, 1] {
            let mut damaged = bytes.clone();
            match n_changed {
                usize::MAX => damaged[n_header..].iter_mut().for_each(|byte| *byte = rng.u8(..)),
                _ => damaged[rng.usize(n_header..bytes.len())] = rng.u8(..),
            }
            std::fs::write(&path, &damaged).unwrap();
            let model = open(&encoded, None);
            for backend in BACKENDS {
                let options = RunnerOptions { backend, n_threads: 1, limits: LIMITS };
                let sampling = SamplingParams { max_tokens: 0, ..Default::default() };
                let mut runner = model.runner(&options).unwrap();
                OneSequence::new(&[1, 2, 3], Arc::new(sampling)).compute_only(&mut *runner, 2);
            }
        }
        bytes.truncate(bytes.len() - 1);
        std::fs::write(&path, &bytes).unwrap();
        let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
        assert!(load(&encoded, &options, &mut |_| {}).is_err(), "{}: a file that was cut", layout.name);
    }
}
