//! Whole models of checkpoints in few bits, made here of a small model in floats: they compute what the same
//! model computes with the numbers that the codes stand for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{Expected, LIMITS, OneSequence};
use fastrand::Rng;
use half::f16;
use safetensors::tensor::TensorView as Stored;
use safetensors::{Dtype, SafeTensors, serialize};
use serde_json::{Value, json};
use throng_core::request::SamplingParams;
use throng_model::quantization::{CacheUse, Quantization, QuantizeOptions};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn fixture() -> PathBuf {
    fixture_of("qwen3")
}

fn fixture_of(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

fn float_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn word_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A linear layer: `[rows, cols]`.
struct Layer {
    name: String,
    rows: usize,
    cols: usize,
    weights: Vec<f32>,
}

/// The tensors of a layer by their endings, and the numbers that they stand for.
type Encoded = (Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>, Vec<f32>);

/// A layer as integers with a scale and a zero point for each group of columns.
struct Integers<'a> {
    of: &'a Layer,
    bits: usize,
    codes: Vec<u32>,
    /// `[rows, n_groups]`.
    zeros: Vec<u32>,
    scales: Vec<f32>,
    groups: Vec<usize>,
    n_groups: usize,
}

impl<'a> Integers<'a> {
    fn new(of: &'a Layer, bits: usize, is_symmetric: bool, groups: Vec<usize>) -> Self {
        let n_groups = 1 + groups.iter().max().unwrap();
        let most = (1_u32 << bits) - 1;
        let (mut zeros, mut scales) = (Vec::new(), Vec::new());
        for row in of.weights.chunks(of.cols) {
            for group in 0..n_groups {
                let of_group = row.iter().zip(&groups).filter(|(_, g)| **g == group).map(|(w, _)| *w);
                let (least, largest) =
                    of_group.fold((0.0f32, 0.0f32), |(least, largest), w| (least.min(w), largest.max(w)));
                let (scale, zero) = if is_symmetric {
                    (least.abs().max(largest) / (most / 2) as f32, most / 2 + 1)
                } else {
                    let scale = (largest - least) / most as f32;
                    (scale, ((-least / scale).round() as u32).clamp(1, most))
                };
                scales.push(f16::from_f32(scale).to_f32());
                zeros.push(zero);
            }
        }
        let code = |i: usize| {
            let at = i / of.cols * n_groups + groups[i % of.cols];
            ((of.weights[i] / scales[at]).round() + zeros[at] as f32).clamp(0.0, most as f32) as u32
        };
        let codes = (0..of.weights.len()).map(code).collect();
        Self { of, bits, codes, zeros, scales, groups, n_groups }
    }

    fn numbers(&self) -> Vec<f32> {
        let number = |i: usize| {
            let at = i / self.of.cols * self.n_groups + self.groups[i % self.of.cols];
            (self.codes[i] as f32 - self.zeros[at] as f32) * self.scales[at]
        };
        (0..self.codes.len()).map(number).collect()
    }

    fn code(&self, row: usize, col: usize) -> u32 {
        self.codes[row * self.of.cols + col]
    }

    fn zero(&self, row: usize, group: usize) -> u32 {
        self.zeros[row * self.n_groups + group]
    }

    /// A matrix of words of which each has as many values as fit, from `value(line, word, place)`.
    fn words(&self, n_lines: usize, n_words: usize, value: impl Fn(usize, usize, usize) -> u32) -> Vec<u8> {
        let per_word = 32 / self.bits;
        let word = |i: usize| {
            (0..per_word).fold(0, |w, p| w | value(i / n_words, i % n_words, p) << (self.bits * p))
        };
        word_bytes(&(0..n_lines * n_words).map(word).collect::<Vec<_>>())
    }

    /// Scales in F16, `[groups, rows]`.
    fn scales_by_group(&self) -> Vec<u8> {
        let at = (0..self.n_groups).flat_map(|group| (0..self.of.rows).map(move |row| (group, row)));
        at.flat_map(|(group, row)| f16::from_f32(self.scales[row * self.n_groups + group]).to_le_bytes())
            .collect()
    }

    fn awq(&self) -> Encoded {
        let (rows, cols, n) = (self.of.rows, self.of.cols, self.of.rows / 8);
        let row = |word: usize, place: usize| 8 * word + [0, 2, 4, 6, 1, 3, 5, 7][place];
        let codes = self.words(cols, n, |col, word, place| self.code(row(word, place), col));
        let zeros = self.words(self.n_groups, n, |group, word, place| self.zero(row(word, place), group));
        let tensors = vec![
            ("qweight", Dtype::I32, vec![cols, n], codes),
            ("qzeros", Dtype::I32, vec![self.n_groups, n], zeros),
            ("scales", Dtype::F16, vec![self.n_groups, rows], self.scales_by_group()),
        ];
        (tensors, self.numbers())
    }

    fn gptq(&self) -> Encoded {
        let (rows, cols, per_word) = (self.of.rows, self.of.cols, 32 / self.bits);
        let codes =
            self.words(cols / per_word, rows, |line, row, place| self.code(row, line * per_word + place));
        let zeros = self.words(self.n_groups, rows / per_word, |group, word, place| {
            self.zero(word * per_word + place, group) - 1
        });
        let groups: Vec<u32> = self.groups.iter().map(|group| *group as u32).collect();
        let tensors = vec![
            ("qweight", Dtype::I32, vec![cols / per_word, rows], codes),
            ("qzeros", Dtype::I32, vec![self.n_groups, rows / per_word], zeros),
            ("scales", Dtype::F16, vec![self.n_groups, rows], self.scales_by_group()),
            ("g_idx", Dtype::I32, vec![cols], word_bytes(&groups)),
        ];
        (tensors, self.numbers())
    }

    fn packed(&self, is_symmetric: bool) -> Encoded {
        let (rows, cols, per_word) = (self.of.rows, self.of.cols, 32 / self.bits);
        let codes =
            self.words(rows, cols / per_word, |row, word, place| self.code(row, word * per_word + place));
        let scales = self.scales.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let mut tensors = vec![
            ("weight_packed", Dtype::I32, vec![rows, cols / per_word], codes),
            ("weight_scale", Dtype::F16, vec![rows, self.n_groups], scales),
        ];
        if !is_symmetric {
            let zeros = self.words(rows / per_word, self.n_groups, |line, group, place| {
                self.zero(line * per_word + place, group)
            });
            tensors.push(("weight_zero_point", Dtype::I32, vec![rows / per_word, self.n_groups], zeros));
        }
        (tensors, self.numbers())
    }

    fn int8(&self) -> Encoded {
        let codes = self.codes.iter().map(|code| (*code as i32 - 128) as i8 as u8).collect();
        let tensors = vec![
            ("weight", Dtype::I8, vec![self.of.rows, self.of.cols], codes),
            ("weight_scale", Dtype::F32, vec![self.of.rows, 1], float_bytes(&self.scales)),
        ];
        (tensors, self.numbers())
    }
}

/// The numbers of E4M3 that are not negative, by their code.
fn e4m3() -> Vec<f32> {
    let number = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7));
        match exponent {
            0 => mantissa * 2f32.powi(-9),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        }
    };
    (0..0x7F).map(number).collect()
}

fn nearest(numbers: &[f32], x: f32) -> usize {
    let distance = |i: &usize| (numbers[*i] - x.abs()).abs();
    (0..numbers.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap()
}

/// FP8 with a scale for each block of rows and columns.
fn fp8(of: &Layer, [high, wide]: [usize; 2], by_row: bool) -> Encoded {
    let (table, per_row) = (e4m3(), of.cols.div_ceil(wide));
    let n_blocks = of.rows.div_ceil(high) * per_row;
    let block = |i: usize| i / of.cols / high * per_row + i % of.cols / wide;
    let mut scales = vec![0.0f32; n_blocks];
    (0..of.weights.len()).for_each(|i| scales[block(i)] = scales[block(i)].max(of.weights[i].abs() / 448.0));
    let code = |i: usize| {
        let x = of.weights[i] / scales[block(i)];
        nearest(&table, x) as u8 | u8::from(x < 0.0) << 7
    };
    let codes: Vec<u8> = (0..of.weights.len()).map(code).collect();
    let number = |i: usize| {
        let size = table[usize::from(codes[i] & 0x7F)] * scales[block(i)];
        if codes[i] >= 128 { -size } else { size }
    };
    let numbers = (0..codes.len()).map(number).collect();
    let (name, shape) = match by_row {
        true => ("weight_scale", vec![of.rows, 1]),
        false => ("weight_scale_inv", vec![of.rows.div_ceil(high), per_row]),
    };
    let tensors = vec![
        ("weight", Dtype::F8_E4M3, vec![of.rows, of.cols], codes),
        (name, Dtype::F32, shape, float_bytes(&scales)),
    ];
    (tensors, numbers)
}

/// The same with the names of compressed-tensors.
fn fp8_of_compressed_tensors(of: &Layer, block: [usize; 2]) -> Encoded {
    let (mut tensors, numbers) = fp8(of, block, false);
    tensors
        .iter_mut()
        .filter(|tensor| tensor.0 == "weight_scale_inv")
        .for_each(|scale| scale.0 = "weight_scale");
    (tensors, numbers)
}

/// MXFP4: an exponent for 32 columns.
fn mxfp4(of: &Layer) -> Encoded {
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let (mut exponents, mut codes, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for weights in of.weights.chunks(32) {
        let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
        let exponent = (largest / 4.0).log2().floor() as i32;
        exponents.push((exponent + 127) as u8);
        for w in weights {
            let code = nearest(&fp4, w / 2f32.powi(exponent));
            codes.push(code as u8 | u8::from(*w < 0.0) << 3);
            let size = fp4[code] * 2f32.powi(exponent);
            numbers.push(if *w < 0.0 { -size } else { size });
        }
    }
    let codes = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let tensors = vec![
        ("weight_packed", Dtype::U8, vec![of.rows, of.cols / 2], codes),
        ("weight_scale", Dtype::U8, vec![of.rows, of.cols / 32], exponents),
    ];
    (tensors, numbers)
}

fn nvfp4(of: &Layer) -> Encoded {
    let (fp8, fp4, global) = (e4m3(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 2f32.powi(-6));
    let (mut groups, mut codes, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for weights in of.weights.chunks(16) {
        let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
        let group = nearest(&fp8, largest / 6.0 / global).max(1);
        groups.push(group as u8);
        for w in weights {
            let code = nearest(&fp4, w / (fp8[group] * global));
            codes.push(code as u8 | u8::from(*w < 0.0) << 3);
            let size = fp4[code] * (fp8[group] * global);
            numbers.push(if *w < 0.0 { -size } else { size });
        }
    }
    let codes = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let tensors = vec![
        ("weight_packed", Dtype::U8, vec![of.rows, of.cols / 2], codes),
        ("weight_scale", Dtype::F8_E4M3, vec![of.rows, of.cols / 16], groups),
        ("weight_global_scale", Dtype::F32, vec![1], float_bytes(&[1.0 / global])),
    ];
    (tensors, numbers)
}

fn compressed(format: &str, weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

fn of_groups(format: &str, bits: usize, is_symmetric: bool) -> Value {
    let weights = json!({"num_bits": bits, "group_size": 32, "strategy": "group", "symmetric": is_symmetric, "type": "int"});
    compressed(format, &weights)
}

/// How a layer is encoded.
type Encoder = Box<dyn Fn(&Layer) -> Encoded>;

/// Each layout: its configuration and its encoder.
fn layouts() -> Vec<(&'static str, Value, Encoder)> {
    let plain = |cols: usize| (0..cols).map(|col| col / 32).collect::<Vec<_>>();
    let shuffled = move |cols: usize| {
        let mut groups = plain(cols);
        Rng::with_seed(5).shuffle(&mut groups);
        groups
    };
    let gptq = |bits: usize, act_order: bool| json!({"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": act_order, "sym": false});
    let row = json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "int"});
    let fp8_row = json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "float"});
    let fp4 = json!({"num_bits": 4, "group_size": 16, "strategy": "tensor_group", "symmetric": true, "type": "float"});
    let fp8_blocks = json!({
        "num_bits": 8, "strategy": "block", "block_structure": [32, 48], "symmetric": true, "type": "float",
    });
    let mx =
        json!({"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": true, "type": "float"});
    let mixture = json!({
        "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "format": "nvfp4-pack-quantized", "weights": fp4},
            "group_1": {"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": fp8_blocks},
        },
    });
    let awq =
        json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"});
    let blocks = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 48]});
    let integers = move |bits, is_symmetric, put: fn(&Integers<'_>) -> Encoded| -> Encoder {
        Box::new(move |of| put(&Integers::new(of, bits, is_symmetric, plain(of.cols))))
    };
    vec![
        ("AWQ", awq, integers(4, false, |of| of.awq())),
        ("GPTQ", gptq(4, false), integers(4, false, |of| of.gptq())),
        (
            "AutoRound",
            json!({"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"}),
            integers(4, false, |of| of.gptq()),
        ),
        ("GPTQ of 8 bits", gptq(8, false), integers(8, true, |of| of.gptq())),
        (
            "GPTQ with act-order",
            gptq(4, true),
            Box::new(move |of| Integers::new(of, 4, false, shuffled(of.cols)).gptq()),
        ),
        ("W4A16", of_groups("pack-quantized", 4, true), integers(4, true, |of| of.packed(true))),
        (
            "W4A16 with zero points",
            of_groups("pack-quantized", 4, false),
            integers(4, false, |of| of.packed(false)),
        ),
        ("W8A16", of_groups("pack-quantized", 8, true), integers(8, true, |of| of.packed(true))),
        (
            "W8A8",
            compressed("int-quantized", &row),
            Box::new(|of| Integers::new(of, 8, true, vec![0; of.cols]).int8()),
        ),
        ("FP8 in blocks", blocks, Box::new(|of| fp8(of, [32, 48], false))),
        ("FP8 in rows", compressed("float-quantized", &fp8_row), Box::new(|of| fp8(of, [1, of.cols], true))),
        (
            "FP8 in blocks of compressed-tensors",
            compressed("float-quantized", &fp8_blocks),
            Box::new(|of| fp8_of_compressed_tensors(of, [32, 48])),
        ),
        ("MXFP4", compressed("mxfp4-pack-quantized", &mx), Box::new(mxfp4)),
        (
            "NVFP4 with attention in FP8",
            mixture,
            Box::new(|of| match of.name.contains("self_attn") {
                true => fp8_of_compressed_tensors(of, [32, 48]),
                false => nvfp4(of),
            }),
        ),
        ("NVFP4", compressed("nvfp4-pack-quantized", &fp4), Box::new(nvfp4)),
    ]
}

/// Writes the model twice: with encoded layers, and with the numbers of those in floats.
fn write_both(folder: &Path, config: &Value, encode: &Encoder) -> [PathBuf; 2] {
    write_both_of(&fixture(), folder, config, encode)
}

fn write_both_of(fixture: &Path, folder: &Path, config: &Value, encode: &Encoder) -> [PathBuf; 2] {
    let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
    let source = SafeTensors::deserialize(&bytes).unwrap();
    let (mut encoded, mut floats) = (Tensors::new(), Tensors::new());
    let mut n_layers = 0;
    for (name, tensor) in source.tensors() {
        let plain = (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec());
        let layer = name.strip_suffix(".weight").filter(|name| name.ends_with("_proj") || *name == "lm_head");
        let Some(layer) = layer.filter(|_| tensor.shape()[1] % 32 == 0) else {
            encoded.insert(name.clone(), plain.clone());
            floats.insert(name, plain);
            continue;
        };
        let weights = tensor.data().as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let of = Layer { name: layer.to_owned(), rows: tensor.shape()[0], cols: tensor.shape()[1], weights };
        let (parts, numbers) = encode(&of);
        parts.into_iter().for_each(|(end, dtype, shape, data)| {
            encoded.insert(format!("{layer}.{end}"), (dtype, shape, data));
        });
        floats.insert(name, (Dtype::F32, plain.1, float_bytes(&numbers)));
        n_layers += 1;
    }
    assert!(n_layers >= 8, "{n_layers} layers of the model are encoded");
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(fixture.join("config.json")).unwrap()).unwrap();
    let mut write = |name: &str, tensors: &Tensors, config: Option<&Value>| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        if let Some(config) = config.filter(|config| !config.is_null()) {
            json["quantization_config"] = config.clone();
        } else {
            json.as_object_mut().unwrap().remove("quantization_config");
        }
        std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            (name.clone(), Stored::new(*dtype, shape.clone(), data).unwrap())
        });
        std::fs::write(folder.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
        folder
    };
    [write("encoded", &encoded, Some(config)), write("floats", &floats, None)]
}

fn open(folder: &Path, quantize: Option<Quantization>) -> LoadedModel {
    let quantize = quantize.map(|to| QuantizeOptions { to, cache: None });
    load(folder, &LoadOptions { prepare: None, n_threads: 2, quantize }, &mut |_| {}).unwrap()
}

/// Log-probabilities of all tokens after each of the prompt.
fn logprobs(model: &LoadedModel, backend: BackendKind) -> Vec<f32> {
    let vocabulary = model.config.vocabulary_size;
    let n = Some(vocabulary as u32);
    let sampling = SamplingParams { temperature: 0.0, logprobs: n, prompt_logprobs: n, ..Default::default() };
    let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits: LIMITS }).unwrap();
    let mut found = Vec::new();
    let prompt = Expected::read(&fixture()).input_ids;
    OneSequence::new(&prompt, Arc::new(sampling)).prefill(&mut *runner, 13, |report| {
        let mut row = vec![f32::NAN; vocabulary];
        report.top.iter().for_each(|top| row[top.token as usize] = top.logprob);
        found.extend(row);
    });
    found
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn models_in_few_bits_compute_with_the_numbers_of_their_codes() {
    for (name, config, encode) in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let [encoded, floats] = write_both(folder.path(), &config, &encode).map(|folder| open(&folder, None));
        let want = logprobs(&floats, BackendKind::Reference);
        let exact = worst(&logprobs(&encoded, BackendKind::Reference), &want);
        let rounded = worst(&logprobs(&encoded, BackendKind::Cpu), &want);
        println!("{name}: {exact:.1e} off with activations in floats, {rounded:.1e} with the CPU's");
        assert!(exact < 1e-5, "{name}: {exact}");
        // What is held as integers is multiplied with activations of eight bits.
        assert!(rounded < 0.5, "{name}: {rounded}");
    }
}

#[test]
fn fp8_is_quantized_while_loading_as_the_same_numbers_in_floats_are() {
    for (name, config, encode) in layouts().into_iter().filter(|(name, ..)| name.starts_with("FP8")) {
        let folder = tempfile::tempdir().unwrap();
        let folders = write_both(folder.path(), &config, &encode);
        for to in [Quantization::Q8_0, Quantization::Q4_0] {
            let [encoded, floats] = folders
                .each_ref()
                .map(|folder| logprobs(&open(folder, Some(to)), BackendKind::Cpu))
                .map(|found| found.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert!(encoded == floats, "{name} to {to:?}");
        }
    }
}

/// What `--quantize-cache` keeps of such a folder is read again, but not once codes, scales or their meaning
/// have changed.
#[test]
fn kept_weights_are_those_of_the_codes_and_of_the_configuration() {
    let blocks = |wide: usize| json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, wide]});
    let folder = tempfile::tempdir().unwrap();
    let encode: Encoder = Box::new(|of| fp8(of, [32, 32], false));
    let [model, _] = write_both(folder.path(), &blocks(32), &encode);
    let cache = folder.path().join("cache");
    let used = || {
        let quantize = Some(QuantizeOptions { to: Quantization::Q8_0, cache: Some(cache.clone()) });
        let options = LoadOptions { prepare: Some(BackendKind::Cpu), n_threads: 2, quantize };
        load(&model, &options, &mut |_| {}).unwrap().quantize_report().unwrap().cache
    };
    assert_eq!((used(), used()), (CacheUse::Written, CacheUse::Read));

    let path = model.join("model.safetensors");
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let [from, to] = metadata.info("model.layers.0.mlp.up_proj.weight").unwrap().data_offsets.into();
    bytes[8 + header + (from + to) / 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!((used(), used()), (CacheUse::Written, CacheUse::Read));

    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [33, 32]});
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    assert_eq!((used(), used()), (CacheUse::Written, CacheUse::Read));
}

/// ModelOpt's older folders have their configuration in a file of its own.
#[test]
fn the_configuration_of_modelopt_is_read_from_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let encode: Encoder = Box::new(|of| fp8(of, [1, of.cols], true));
    let folders = write_both(folder.path(), &Value::Null, &encode);
    let own = |algorithm: &str| {
        let quantization =
            json!({"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]});
        let file = json!({"producer": {"name": "modelopt", "version": "0.31"}, "quantization": quantization});
        std::fs::write(folders[0].join("hf_quant_config.json"), file.to_string()).unwrap();
    };
    own("FP8_PER_CHANNEL_PER_TOKEN");
    let [encoded, floats] =
        folders.each_ref().map(|folder| logprobs(&open(folder, None), BackendKind::Reference));
    assert!(worst(&encoded, &floats) < 1e-5);
    own("INT4_AWQ");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let error = load(&folders[0], &options, &mut |_| {}).err().unwrap().to_string();
    assert!(error.contains("quant_algo = \"INT4_AWQ\" of ModelOpt"), "{error}");
}

/// An output matrix in few bits is no missing one, in whose place the embeddings would be used.
#[test]
fn the_output_matrix_may_be_in_few_bits_too() {
    for (name, config, encode) in
        layouts().into_iter().filter(|(name, ..)| ["GPTQ", "FP8 in blocks"].contains(name))
    {
        let folder = tempfile::tempdir().unwrap();
        let folders = write_both_of(&fixture_of("llama"), folder.path(), &config, &encode);
        let [encoded, floats] =
            folders.each_ref().map(|folder| logprobs(&open(folder, None), BackendKind::Reference));
        assert!(worst(&encoded, &floats) < 1e-5, "{name}");
        if name.starts_with("FP8") {
            let [encoded, floats] = folders
                .each_ref()
                .map(|folder| logprobs(&open(folder, Some(Quantization::Q4_0)), BackendKind::Cpu))
                .map(|found| found.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert!(encoded == floats, "{name} to Q4_0");
        }
    }
}
