//! Quantized checkpoints of other libraries, made here as their documents describe them, against dequantization in float64 that shares
//! no code with the loader: every number is the same, and the format that holds it is the smallest exact one.

use std::collections::BTreeMap;

use fastrand::Rng;
use half::{bf16, f16};
use safetensors::tensor::TensorView as Stored;
use safetensors::{Dtype, serialize};
use serde_json::{Value, json};
use throng_kernels::quant::{Format, dequantize_row};
use throng_model::weights::TensorSource;
use throng_model::weights::quantized::{QuantizedFolder, Scheme};
use throng_model::weights::safetensors::SafetensorsFolder;

/// Tensors of a file to be written: type, shape, bytes.
type Tensors = BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>;

/// A layer `l` in some layout, and its numbers in float64.
struct Case {
    config: Value,
    tensors: Tensors,
    shape: [usize; 2],
    numbers: Vec<f64>,
    format: Format,
}

fn file(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (format!("l.{name}"), Stored::new(*dtype, shape.clone(), data).unwrap())
    });
    serialize(views, None).unwrap()
}

fn scheme(config: &Value) -> Scheme {
    let config = json!({ "quantization_config": config });
    Scheme::of_config(config.as_object().unwrap()).unwrap().unwrap()
}

fn open(case: &Case) -> QuantizedFolder {
    let folder = SafetensorsFolder::parse_any(&file(&case.tensors)).unwrap();
    QuantizedFolder::new(folder, scheme(&case.config))
}

impl Case {
    fn check(&self) {
        let folder = open(self);
        let what = format!("{} {:?}", self.config, self.shape);
        assert_eq!(folder.encoded_names(), ["l.weight"], "{what}");
        assert!(folder.names().is_empty(), "{what}: {:?}", folder.names());
        let decoded = folder.decode("l.weight", self.shape).unwrap().unwrap();
        assert_eq!(decoded.format, self.format, "{what}");
        let mut found = vec![0.0; self.numbers.len()];
        let row_bytes = decoded.data.len() / self.shape[0];
        for (row, out) in decoded.data.chunks(row_bytes).zip(found.chunks_mut(self.shape[1])) {
            dequantize_row(decoded.format, row, out);
        }
        for (i, (found, number)) in found.iter().zip(&self.numbers).enumerate() {
            assert_eq!(*found, *number as f32, "{what}: element {i}");
        }
        // Each tensor of another shape is an error that names it, and so is each that is absent.
        for (name, (dtype, shape, data)) in &self.tensors {
            let mut damaged = self.tensors.clone();
            damaged.remove(name);
            let folder = SafetensorsFolder::parse_any(&file(&damaged)).unwrap();
            let folder = QuantizedFolder::new(folder, scheme(&self.config));
            // Which column is of which group may be left out.
            if !name.ends_with("g_idx") {
                assert!(
                    !matches!(folder.decode("l.weight", self.shape), Some(Ok(_))),
                    "{what} without {name}"
                );
            }
            let wrong = vec![shape.iter().product::<usize>() + 1];
            let mut bytes = data.clone();
            bytes.extend(vec![0; data.len() / shape.iter().product::<usize>().max(1)]);
            damaged.insert(name, (*dtype, wrong, bytes));
            let folder = SafetensorsFolder::parse_any(&file(&damaged)).unwrap();
            let folder = QuantizedFolder::new(folder, scheme(&self.config));
            let error = folder.decode("l.weight", self.shape).unwrap().unwrap_err().to_string();
            assert!(error.contains("l."), "{what}: {error}");
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Random scales that F16 has exactly, as their float64 values and in this type.
fn scales(rng: &mut Rng, n: usize, dtype: Dtype) -> (Vec<f64>, Vec<u8>) {
    let values: Vec<f32> = (0..n).map(|_| bf16::from_f32(0.001 + rng.f32() * 0.1).to_f32()).collect();
    let bytes = values.iter().flat_map(|&x| match dtype {
        Dtype::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    });
    (values.iter().map(|&x| f64::from(x)).collect(), bytes.collect())
}

fn awq(rng: &mut Rng, [rows, cols]: [usize; 2], group: usize) -> Case {
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..16)).collect();
    let n_groups = cols / group;
    let zeros: Vec<u32> = (0..n_groups * rows).map(|_| rng.u32(0..16)).collect();
    let (scale, scale_bytes) = scales(rng, n_groups * rows, Dtype::F16);
    // AutoAWQ's order_map: the row at each nibble of a word.
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let pack = |at: &dyn Fn(usize, usize) -> u32, n: usize| -> Vec<u8> {
        let word = |i: usize, w: usize| (0..8).fold(0, |word, p| word | at(i, w * 8 + order[p]) << (4 * p));
        words(
            &(0..n)
                .flat_map(|i| (0..rows / 8).map(move |w| (i, w)))
                .map(|(i, w)| word(i, w))
                .collect::<Vec<_>>(),
        )
    };
    let numbers = (0..rows * cols).map(|i| {
        let (row, col) = (i / cols, i % cols);
        let of_group = col / group * rows + row;
        (f64::from(codes[row * cols + col]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let tensors = BTreeMap::from([
        ("qweight", (Dtype::I32, vec![cols, rows / 8], pack(&|col, row| codes[row * cols + col], cols))),
        ("qzeros", (Dtype::I32, vec![n_groups, rows / 8], pack(&|g, row| zeros[g * rows + row], n_groups))),
        ("scales", (Dtype::F16, vec![n_groups, rows], scale_bytes)),
    ]);
    let config =
        json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"});
    Case { config, tensors, shape: [rows, cols], numbers, format: Format::Q5_0 }
}

fn gptq(rng: &mut Rng, bits: usize, sym: bool, act_order: bool, is_second: bool) -> Case {
    let ([rows, cols], group) = ([32, 128], 32);
    let (per_word, most) = (32 / bits, 1_u32 << bits);
    let n_groups = cols / group;
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..most)).collect();
    let zero = |rng: &mut Rng| if sym { most / 2 } else { rng.u32(1..most) };
    let zeros: Vec<u32> = (0..n_groups * rows).map(|_| zero(rng)).collect();
    let (scale, scale_bytes) = scales(rng, n_groups * rows, Dtype::F16);
    let mut groups: Vec<u32> = (0..cols).map(|col| (col / group) as u32).collect();
    if act_order {
        rng.shuffle(&mut groups);
    }
    let mut qweight = vec![0_u32; cols / per_word * rows];
    for row in 0..rows {
        for col in 0..cols {
            qweight[col / per_word * rows + row] |= codes[row * cols + col] << (bits * (col % per_word));
        }
    }
    let mut qzeros = vec![0_u32; n_groups * rows / per_word];
    for g in 0..n_groups {
        for row in 0..rows {
            let stored = zeros[g * rows + row] - u32::from(!is_second);
            qzeros[(g * rows + row) / per_word] |= stored << (bits * (row % per_word));
        }
    }
    let numbers = (0..rows * cols).map(|i| {
        let of_group = groups[i % cols] as usize * rows + i / cols;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let tensors = BTreeMap::from([
        ("qweight", (Dtype::I32, vec![cols / per_word, rows], words(&qweight))),
        ("qzeros", (Dtype::I32, vec![n_groups, rows / per_word], words(&qzeros))),
        ("scales", (Dtype::F16, vec![n_groups, rows], scale_bytes)),
        ("g_idx", (Dtype::I32, vec![cols], words(&groups))),
    ]);
    let format = match (act_order, bits, sym) {
        (true, ..) => Format::F32,
        (_, 2, _) | (_, 4, true) => Format::Q4_0,
        (_, 4, false) => Format::Q5_0,
        (_, _, true) => Format::Q8_0,
        _ => Format::F32,
    };
    let name = if is_second { "gptq_v2" } else { "gptq" };
    let config = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": sym,
        "checkpoint_format": name, "static_groups": false, "true_sequential": true, "lm_head": false,
    });
    Case { config, tensors, shape: [rows, cols], numbers, format }
}

fn weights_config(format: &str, weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quantization_status": "compressed", "global_compression_ratio": 1.5,
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "weights": weights}},
    })
}

fn packed(rng: &mut Rng, bits: usize, is_symmetric: bool, dtype: Dtype) -> Case {
    let ([rows, cols], group) = ([16, 64], 32);
    let (per_word, most, n_groups) = (32 / bits, 1_u32 << bits, cols / group);
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..most)).collect();
    let zeros: Vec<u32> =
        (0..rows * n_groups).map(|_| if is_symmetric { most / 2 } else { rng.u32(0..most) }).collect();
    let (scale, scale_bytes) = scales(rng, rows * n_groups, dtype);
    let mut packed = vec![0_u32; rows * cols / per_word];
    for (i, code) in codes.iter().enumerate() {
        packed[i / per_word] |= code << (bits * (i % per_word));
    }
    let mut packed_zeros = vec![0_u32; rows / per_word * n_groups];
    for row in 0..rows {
        for g in 0..n_groups {
            packed_zeros[row / per_word * n_groups + g] |=
                zeros[row * n_groups + g] << (bits * (row % per_word));
        }
    }
    let numbers = (0..rows * cols).map(|i| {
        let of_group = i / cols * n_groups + i % cols / group;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let mut tensors = BTreeMap::from([
        ("weight_packed", (Dtype::I32, vec![rows, cols / per_word], words(&packed))),
        ("weight_scale", (dtype, vec![rows, n_groups], scale_bytes)),
    ]);
    if !is_symmetric {
        tensors
            .insert("weight_zero_point", (Dtype::I32, vec![rows / per_word, n_groups], words(&packed_zeros)));
    }
    let weights = json!({
        "num_bits": bits, "group_size": group, "strategy": "group", "symmetric": is_symmetric, "type": "int",
        "dynamic": false, "observer": "minmax", "actorder": null,
    });
    let format = match (bits, is_symmetric) {
        (4, true) => Format::Q4_0,
        (4, false) => Format::Q5_0,
        (_, true) => Format::Q8_0,
        _ => Format::F32,
    };
    Case { config: weights_config("pack-quantized", &weights), tensors, shape: [rows, cols], numbers, format }
}

fn int8(rng: &mut Rng, dtype: Dtype) -> Case {
    let [rows, cols] = [7, 64];
    let codes: Vec<i8> = (0..rows * cols).map(|_| rng.i8(..)).collect();
    let (scale, scale_bytes) = match dtype {
        // More digits than F16 has.
        Dtype::F32 => {
            let values: Vec<f32> = (0..rows).map(|_| 0.01 + rng.f32()).collect();
            (
                values.iter().map(|&x| f64::from(x)).collect(),
                values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            )
        }
        _ => scales(rng, rows, dtype),
    };
    let numbers = codes.iter().enumerate().map(|(i, &code)| f64::from(code) * scale[i / cols]).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::I8, vec![rows, cols], codes.iter().map(|&code| code as u8).collect())),
        ("weight_scale", (dtype, vec![rows, 1], scale_bytes)),
    ]);
    let weights =
        json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "int", "dynamic": false});
    let format = if dtype == Dtype::F32 { Format::F32 } else { Format::Q8_0 };
    Case { config: weights_config("int-quantized", &weights), tensors, shape: [rows, cols], numbers, format }
}

/// E4M3 by its definition, in float64.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (f64::from(code >> 3 & 15), f64::from(code & 7));
    let size = if exponent == 0.0 {
        mantissa / 8.0 * 2.0_f64.powi(-6)
    } else {
        (1.0 + mantissa / 8.0) * 2.0_f64.powf(exponent - 7.0)
    };
    if code >= 128 { -size } else { size }
}

/// Any code but those of NaN.
fn fp8_code(rng: &mut Rng) -> u8 {
    loop {
        let code = rng.u8(..);
        if code & 0x7f != 0x7f {
            return code;
        }
    }
}

fn fp8_blocks(rng: &mut Rng, has_powers: bool) -> Case {
    let ([rows, cols], [high, wide]): ([usize; 2], [usize; 2]) = ([150, 200], [128, 128]);
    let codes: Vec<u8> = (0..rows * cols).map(|_| fp8_code(rng)).collect();
    let shape = [rows.div_ceil(high), cols.div_ceil(wide)];
    let scale = |rng: &mut Rng| if has_powers { 2.0_f32.powi(rng.i32(-12..3)) } else { 0.001 + rng.f32() };
    let scales: Vec<f32> = (0..shape[0] * shape[1]).map(|_| scale(rng)).collect();
    let number = |i: usize| e4m3(codes[i]) * f64::from(scales[i / cols / high * shape[1] + i % cols / wide]);
    let numbers = (0..rows * cols).map(number).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::F8_E4M3, vec![rows, cols], codes.clone())),
        (
            "weight_scale_inv",
            (Dtype::F32, shape.to_vec(), scales.iter().flat_map(|x| x.to_le_bytes()).collect()),
        ),
    ]);
    let config = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [high, wide]});
    let format = if has_powers { Format::BF16 } else { Format::F32 };
    Case { config, tensors, shape: [rows, cols], numbers, format }
}

fn fp8_rows(rng: &mut Rng) -> Case {
    let [rows, cols] = [9, 40];
    let codes: Vec<u8> = (0..rows * cols).map(|_| fp8_code(rng)).collect();
    let (scale, scale_bytes) = scales(rng, rows, Dtype::BF16);
    let numbers = (0..rows * cols).map(|i| e4m3(codes[i]) * scale[i / cols]).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::F8_E4M3, vec![rows, cols], codes)),
        ("weight_scale", (Dtype::BF16, vec![rows, 1], scale_bytes)),
    ]);
    let weights =
        json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "float", "dynamic": false});
    Case {
        config: weights_config("float-quantized", &weights),
        tensors,
        shape: [rows, cols],
        numbers,
        format: Format::F32,
    }
}

fn nvfp4(rng: &mut Rng, is_modelopt: bool) -> Case {
    let [rows, cols] = [5, 64];
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let codes: Vec<u8> = (0..rows * cols).map(|_| rng.u8(0..16)).collect();
    let groups: Vec<u8> = (0..rows * cols / 16).map(|_| fp8_code(rng) & 0x7f).collect();
    // A power of two, so that its inverse and all products are exact.
    let global = 2.0_f64.powi(-6);
    let number = |i: usize| {
        let size: f64 = values[(codes[i] & 7) as usize];
        let element = if codes[i] >= 8 { -size } else { size };
        element * e4m3(groups[i / 16]) * global
    };
    let numbers = (0..rows * cols).map(number).collect();
    let bytes: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let (weight, global_name, stored) = match is_modelopt {
        true => ("weight", "weight_scale_2", global as f32),
        false => ("weight_packed", "weight_global_scale", 1.0 / global as f32),
    };
    let tensors = BTreeMap::from([
        (weight, (Dtype::U8, vec![rows, cols / 2], bytes)),
        ("weight_scale", (Dtype::F8_E4M3, vec![rows, cols / 16], groups)),
        (global_name, (Dtype::F32, vec![1], stored.to_le_bytes().to_vec())),
    ]);
    let weights = json!({"num_bits": 4, "group_size": 16, "strategy": "tensor_group", "symmetric": true, "type": "float", "dynamic": false});
    let config = match is_modelopt {
        true => {
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "producer": {"name": "modelopt"}})
        }
        false => weights_config("nvfp4-pack-quantized", &weights),
    };
    Case { config, tensors, shape: [rows, cols], numbers, format: Format::BF16 }
}

#[test]
fn every_format_is_decoded_exactly() {
    let rng = &mut Rng::with_seed(71);
    awq(rng, [32, 128], 64).check();
    awq(rng, [16, 64], 32).check();
    for bits in [2, 4, 8] {
        for (sym, act_order, is_second) in
            [(true, false, false), (false, false, false), (false, true, false), (false, false, true)]
        {
            gptq(rng, bits, sym, act_order, is_second).check();
        }
    }
    for bits in [4, 8] {
        for is_symmetric in [true, false] {
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
                packed(rng, bits, is_symmetric, dtype).check();
            }
        }
    }
    for dtype in [Dtype::BF16, Dtype::F32] {
        int8(rng, dtype).check();
    }
    fp8_blocks(rng, false).check();
    fp8_blocks(rng, true).check();
    fp8_rows(rng).check();
    nvfp4(rng, true).check();
    nvfp4(rng, false).check();
}

#[test]
fn a_field_that_is_not_known_is_refused_by_name() {
    let refused = |config: Value| {
        let config = json!({ "quantization_config": config });
        Scheme::of_config(config.as_object().unwrap()).unwrap_err().to_string()
    };
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "rotation": "hadamard"});
    assert_eq!(refused(awq), "rotation = \"hadamard\" of AWQ");
    assert_eq!(refused(json!({"quant_method": "awq", "version": "gemv"})), "version = \"gemv\" of AWQ");
    assert_eq!(refused(json!({"quant_method": "gptq", "bits": 3})), "bits = 3 of GPTQ");
    assert_eq!(refused(json!({"quant_method": "hqq"})), "hqq");
    let sparse = json!({"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": true, "rank": 3});
    assert_eq!(refused(weights_config("pack-quantized", &sparse)), "rank = 3 of compressed-tensors weights");
    let fp8 = json!({"quant_method": "fp8", "fmt": "e5m2"});
    assert_eq!(refused(fp8), "fmt = \"e5m2\" of FP8");
}

/// Whatever is changed in a file of each format, it is decoded or refused, and nothing else happens.
#[test]
fn damaged_layers_are_errors_or_other_numbers() {
    let rng = &mut Rng::with_seed(72);
    for mut case in [
        awq(rng, [16, 64], 32),
        gptq(rng, 4, false, true, false),
        packed(rng, 4, false, Dtype::BF16),
        nvfp4(rng, false),
    ] {
        for _ in 0..200 {
            let names: Vec<_> = case.tensors.keys().copied().collect();
            let (_, _, data) = case.tensors.get_mut(names[rng.usize(..names.len())]).unwrap();
            let at = rng.usize(..data.len());
            data[at] ^= 1 << rng.u32(..8);
            let shape = if rng.bool() { case.shape } else { [rng.usize(1..300), rng.usize(1..300)] };
            let _ = open(&case).decode("l.weight", shape).unwrap();
        }
    }
}
