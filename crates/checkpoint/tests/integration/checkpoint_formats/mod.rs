//! Quantized checkpoints of other libraries, made here as their documents describe them, against
//! dequantization in float64 that shares no code with the loader: every number is the same, and the format
//! that holds it is the smallest exact one.

use std::collections::BTreeMap;

use fastrand::Rng;
use half::{bf16, f16};
use safetensors::tensor::TensorView as Stored;
use safetensors::{Dtype, serialize};
use serde_json::{Value, json};
use throng_checkpoint::TensorSource;
use throng_checkpoint::quantized::{QuantizedFolder, Scheme};
use throng_checkpoint::safetensors::SafetensorsFolder;
use throng_kernels::quant::{Format, dequantize_row};

mod configs;
mod floats;
mod integers;
mod stacked;

use floats::{
    fp8_blocks, fp8_of_compressed_tensors, fp8_of_modelopt, fp8_rows, fp8_tensor, mxfp4, mxfp8, nvfp4,
};
use integers::{awq, awq_gemv, gptq, int8, int8_groups, packed, packed_by_one};

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
            // Which column is of which group may be left out, and the shape.
            if !name.ends_with("g_idx") && *name != "weight_shape" {
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

fn weights_config(format: &str, weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quantization_status": "compressed", "global_compression_ratio": 1.5,
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "weights": weights}},
    })
}

#[test]
fn every_format_is_decoded_exactly() {
    let rng = &mut Rng::with_seed(71);
    awq(rng, [32, 128], 64).check();
    awq(rng, [16, 64], 32).check();
    for (group, zeros_width) in [(128, 1), (64, 2), (32, 4)] {
        awq_gemv(rng, [5, 256], group, zeros_width).check();
    }
    for bits in [2, 3, 4, 8] {
        for (sym, act_order, is_second) in
            [(true, false, false), (false, false, false), (false, true, false), (false, false, true)]
        {
            gptq(rng, bits, sym, act_order, is_second).check();
        }
    }
    for bits in 2..=8 {
        for is_symmetric in [true, false] {
            int8_groups(rng, bits, is_symmetric).check();
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
                packed(rng, bits, is_symmetric, dtype).check();
            }
        }
    }
    for bits in [4, 8] {
        packed_by_one(rng, bits).check();
    }
    for dtype in [Dtype::BF16, Dtype::F32] {
        int8(rng, dtype).check();
    }
    // Rows of whole blocks of FP8, of MXFP8, and of neither.
    for cols in [256, 224, 200] {
        fp8_blocks(rng, false, cols).check();
        fp8_blocks(rng, true, cols).check();
        fp8_rows(rng, cols).check();
    }
    fp8_of_modelopt(rng).check();
    let fp8 = json!({
        "quant_method": "fp8", "activation_scheme": "static", "dequantize": false, "weight_block_size": null,
        "modules_to_not_convert": ["model.vision_tower", "lm_head"],
    });
    fp8_tensor(rng, fp8.clone(), 128, ("weight_scale_inv", &[])).check();
    fp8_tensor(rng, fp8.clone(), 40, ("weight_scale", &[1])).check();
    fp8_tensor(rng, fp8, 128, ("weight_scale_inv", &[1, 1])).check();
    let modelopt = json!({
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"},
        "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"dynamic": false, "num_bits": 8, "type": "float"}}},
    });
    fp8_tensor(rng, modelopt, 384, ("weight_scale", &[])).check();
    fp8_of_compressed_tensors(rng, "block", [128, 128]).check();
    fp8_of_compressed_tensors(rng, "block", [64, 32]).check();
    fp8_of_compressed_tensors(rng, "group", [1, 128]).check();
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        mxfp8(rng, dtype, 96).check();
        mxfp8(rng, dtype, 80).check();
    }
    mxfp4(rng).check();
    // Rows of whole blocks, and of groups alone.
    for cols in [128, 80] {
        nvfp4(rng, true, cols).check();
        nvfp4(rng, false, cols).check();
    }
}

/// FP8 and MXFP8 have no NaN, and round no product whose size is beyond that of normal numbers: such layers
/// are held in floats.
#[test]
fn numbers_that_fp8_does_not_have_are_floats() {
    let rng = &mut Rng::with_seed(73);
    let scales = [2.0_f32.powi(-115), -2.0_f32.powi(115), 1e-40, f32::INFINITY, f32::NAN];
    for has_powers in [false, true] {
        let mut case = fp8_blocks(rng, has_powers, 256);
        case.tensors.get_mut("weight").unwrap().2[5] = 0xff;
        let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
        assert_eq!(decoded.format, if has_powers { Format::BF16 } else { Format::F32 });
        let mut found = vec![0.0; 256];
        dequantize_row(decoded.format, &decoded.data[..decoded.data.len() / 150], &mut found);
        assert!(found[5].is_nan() && found[..5].iter().all(|x| x.is_finite()));
    }
    for scale in scales {
        let mut case = fp8_blocks(rng, false, 256);
        case.tensors.get_mut("weight_scale_inv").unwrap().2[..4].copy_from_slice(&scale.to_le_bytes());
        let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
        assert_eq!(decoded.format, Format::F32, "{scale}");
    }
    for exponent in [247, 255] {
        let mut case = mxfp8(rng, Dtype::U8, 96);
        case.tensors.get_mut("weight_scale").unwrap().2[1] = exponent;
        let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
        assert_eq!(decoded.format, Format::BF16, "{exponent}");
    }
    // The smallest exponent, of a block of zeros for one, is one of MXFP8.
    let mut case = mxfp8(rng, Dtype::U8, 96);
    case.tensors.get_mut("weight_scale").unwrap().2[1] = 0;
    let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
    assert_eq!((decoded.format, decoded.data[33]), (Format::MXFP8, 0));
}

/// NVFP4 as ggml has it has neither NaN nor signs among its scales, and no factors beyond f32's normal
/// numbers.
#[test]
fn numbers_that_blocks_of_nvfp4_do_not_have_are_floats() {
    let rng = &mut Rng::with_seed(74);
    for (scale, number) in [(0x7f, f32::NAN), (0x80 | 0x38, -1.0)] {
        let mut case = nvfp4(rng, true, 64);
        case.tensors.get_mut("weight").unwrap().2[0] = 0x22;
        case.tensors.get_mut("weight_scale").unwrap().2[0] = scale;
        let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
        assert_eq!(decoded.format, Format::BF16);
        let mut found = vec![0.0; 64];
        dequantize_row(decoded.format, &decoded.data[..2 * 64], &mut found);
        // The factor is 2^-6.
        assert!(found[0] * 64.0 == number || found[0].is_nan() && number.is_nan(), "{}", found[0]);
    }
    for factor in [2.0_f32.powi(-115), 1e-40, f32::INFINITY, f32::NAN] {
        let mut case = nvfp4(rng, true, 64);
        case.tensors.get_mut("weight_scale_2").unwrap().2.copy_from_slice(&factor.to_le_bytes());
        let decoded = open(&case).decode("l.weight", case.shape).unwrap().unwrap();
        assert!([Format::BF16, Format::F32].contains(&decoded.format), "{factor}");
    }
}

/// Whatever is changed in a file of each format, it is decoded or refused, and nothing else happens.
#[test]
fn damaged_layers_are_errors_or_other_numbers() {
    let rng = &mut Rng::with_seed(72);
    for mut case in [
        awq(rng, [16, 64], 32),
        gptq(rng, 4, false, true, false),
        gptq(rng, 3, false, false, true),
        awq_gemv(rng, [5, 64], 32, 4),
        packed(rng, 4, false, Dtype::BF16),
        packed(rng, 3, true, Dtype::BF16),
        int8_groups(rng, 4, false),
        nvfp4(rng, false, 64),
        fp8_of_compressed_tensors(rng, "block", [128, 128]),
        fp8_blocks(rng, true, 256),
        mxfp8(rng, Dtype::U8, 96),
        mxfp4(rng),
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
