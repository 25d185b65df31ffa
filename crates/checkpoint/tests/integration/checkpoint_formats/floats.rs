//! Layers of short floats: FP8, NVFP4, and the OCP's microscaling formats.

use super::*;

/// E4M3 by its definition, in float64.
pub(super) fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (f64::from(code >> 3 & 15), f64::from(code & 7));
    let size = if exponent == 0.0 {
        mantissa / 8.0 * 2.0_f64.powi(-6)
    } else {
        (1.0 + mantissa / 8.0) * 2.0_f64.powf(exponent - 7.0)
    };
    if code >= 128 { -size } else { size }
}

/// E2M1 by its definition, in float64.
pub(super) fn e2m1(code: u8) -> f64 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(code & 7) as usize];
    if code >= 8 { -size } else { size }
}

/// Any code but those of NaN.
pub(super) fn fp8_code(rng: &mut Rng) -> u8 {
    loop {
        let code = rng.u8(..);
        if code & 0x7f != 0x7f {
            return code;
        }
    }
}

/// The format that holds E4M3 with a scale for `wide` columns of `cols`.
fn held(has_powers: bool, cols: usize, wide: usize) -> Format {
    match (has_powers, cols % 128 + wide % 128, cols % 32 + wide % 32) {
        (true, _, 0) => Format::MXFP8,
        (true, ..) => Format::BF16,
        (false, 0, _) => Format::FP8,
        (false, ..) => Format::F32,
    }
}

pub(super) fn fp8_blocks(rng: &mut Rng, has_powers: bool, cols: usize) -> Case {
    let (rows, [high, wide]): (usize, [usize; 2]) = (150, [128, 128]);
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
    let format = held(has_powers, cols, wide);
    Case { config, tensors, shape: [rows, cols], numbers, format }
}

/// One scale for all, as transformers (Ministral 3), AutoFP8 and ModelOpt store it.
pub(super) fn fp8_tensor(
    rng: &mut Rng,
    config: Value,
    cols: usize,
    (name, shape): (&'static str, &[usize]),
) -> Case {
    let rows = 9;
    let codes: Vec<u8> = (0..rows * cols).map(|_| fp8_code(rng)).collect();
    let (scale, scale_bytes) = scales(rng, 1, Dtype::BF16);
    let numbers = codes.iter().map(|&code| e4m3(code) * scale[0]).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::F8_E4M3, vec![rows, cols], codes)),
        (name, (Dtype::BF16, shape.to_vec(), scale_bytes)),
    ]);
    Case { config, tensors, shape: [rows, cols], numbers, format: held(false, cols, cols) }
}

/// ModelOpt's blocks: scales have the dimensions within a block too.
pub(super) fn fp8_of_modelopt(rng: &mut Rng) -> Case {
    let mut case = fp8_blocks(rng, false, 384);
    let (dtype, shape, data) = case.tensors.remove("weight_scale_inv").unwrap();
    case.tensors.insert("weight_scale", (dtype, vec![shape[0], 1, shape[1], 1], data));
    case.config = json!({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo", "group_size": 128});
    case
}

/// What compressed-tensors calls a block, or a group of one row's columns.
pub(super) fn fp8_of_compressed_tensors(rng: &mut Rng, strategy: &str, [high, wide]: [usize; 2]) -> Case {
    let [rows, cols]: [usize; 2] = [150, 256];
    let codes: Vec<u8> = (0..rows * cols).map(|_| fp8_code(rng)).collect();
    let shape = [rows.div_ceil(high), cols.div_ceil(wide)];
    let (scale, scale_bytes) = scales(rng, shape[0] * shape[1], Dtype::BF16);
    let number = |i: usize| e4m3(codes[i]) * scale[i / cols / high * shape[1] + i % cols / wide];
    let numbers = (0..rows * cols).map(number).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::F8_E4M3, vec![rows, cols], codes.clone())),
        ("weight_scale", (Dtype::BF16, shape.to_vec(), scale_bytes)),
    ]);
    let mut weights = json!({
        "actorder": null, "dynamic": false, "num_bits": 8, "observer": "static_minmax", "observer_kwargs": {},
        "scale_dtype": null, "strategy": strategy, "symmetric": true, "type": "float", "zp_dtype": null,
    });
    match strategy {
        "block" => weights["block_structure"] = json!([high, wide]),
        _ => weights["group_size"] = json!(wide),
    }
    let mut config = weights_config("float-quantized", &weights);
    // As llm-compressor writes it.
    config["config_groups"]["group_0"]["format"] = json!("float-quantized");
    config["config_groups"]["group_0"]["input_activations"] = json!({
        "actorder": null, "block_structure": null, "dynamic": true, "group_size": 128, "num_bits": 8, "observer": null,
        "observer_kwargs": {}, "strategy": "group", "symmetric": true, "type": "float",
    });
    config["sparsity_config"] = json!({});
    config["transform_config"] = json!({});
    config["version"] = json!("0.13.0");
    Case { config, tensors, shape: [rows, cols], numbers, format: held(false, cols, wide) }
}

/// Exponents of which the product with any code is a normal number.
fn exponents(rng: &mut Rng, n: usize) -> Vec<u8> {
    (0..n).map(|_| rng.u8(110..140)).collect()
}

pub(super) fn mxfp8(rng: &mut Rng, dtype: Dtype, cols: usize) -> Case {
    let rows = 3;
    let codes: Vec<u8> = (0..rows * cols).map(|_| fp8_code(rng)).collect();
    let per_row = cols.div_ceil(32);
    let scales = exponents(rng, rows * per_row);
    let scale = |i: usize| 2.0_f64.powi(i32::from(scales[i / cols * per_row + i % cols / 32]) - 127);
    let numbers = (0..rows * cols).map(|i| e4m3(codes[i]) * scale(i)).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::F8_E4M3, vec![rows, cols], codes)),
        ("weight_scale", (dtype, vec![rows, per_row], scales.clone())),
    ]);
    let weights = json!({
        "num_bits": 8, "group_size": 32, "strategy": "group", "symmetric": true, "type": "float", "dynamic": false,
        "scale_dtype": "torch.uint8",
    });
    let config = weights_config("mxfp8-quantized", &weights);
    Case { config, tensors, shape: [rows, cols], numbers, format: held(true, cols, 32) }
}

pub(super) fn mxfp4(rng: &mut Rng) -> Case {
    let [rows, cols] = [5, 96];
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let codes: Vec<u8> = (0..rows * cols).map(|_| rng.u8(0..16)).collect();
    let scales = exponents(rng, rows * cols / 32);
    let number = |i: usize| {
        let size: f64 = values[usize::from(codes[i] & 7)] * 2.0_f64.powi(i32::from(scales[i / 32]) - 127);
        if codes[i] >= 8 { -size } else { size }
    };
    let numbers = (0..rows * cols).map(number).collect();
    let bytes: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let tensors = BTreeMap::from([
        ("weight_packed", (Dtype::U8, vec![rows, cols / 2], bytes)),
        ("weight_scale", (Dtype::U8, vec![rows, cols / 32], scales.clone())),
    ]);
    let weights = json!({
        "num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": true, "type": "float", "dynamic": false,
        "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8",
    });
    let config = weights_config("mxfp4-pack-quantized", &weights);
    Case { config, tensors, shape: [rows, cols], numbers, format: Format::MXFP4 }
}

pub(super) fn fp8_rows(rng: &mut Rng, cols: usize) -> Case {
    let rows = 9;
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
        format: held(false, cols, cols),
    }
}

pub(super) fn nvfp4(rng: &mut Rng, is_modelopt: bool, cols: usize) -> Case {
    let rows = 5;
    let codes: Vec<u8> = (0..rows * cols).map(|_| rng.u8(0..16)).collect();
    let groups: Vec<u8> = (0..rows * cols / 16).map(|_| fp8_code(rng) & 0x7f).collect();
    // A power of two, so that its inverse and all products are exact.
    let global = 2.0_f64.powi(-6);
    let number = |i: usize| e2m1(codes[i]) * e4m3(groups[i / 16]) * global;
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
    let format = if cols.is_multiple_of(64) { Format::NVFP4_SCALED } else { Format::BF16 };
    Case { config, tensors, shape: [rows, cols], numbers, format }
}
