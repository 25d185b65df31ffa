//! Small layers of every checkpoint format, damaged everywhere: truncated, each bit of the header and of the
//! data flipped, each value of the configuration replaced by an extreme one, and asked for in shapes that
//! they do not have.

use safetensors::Dtype;
use safetensors::tensor::TensorView as Stored;
use serde_json::{Value, json};
use throng_checkpoint::TensorSource;
use throng_checkpoint::quantized::{QuantizedFolder, Scheme};
use throng_checkpoint::safetensors::SafetensorsFolder;

use super::within_bounds;

const SHAPE: [usize; 2] = [16, 64];

/// The tensors of a layer and the `quantization_config` that says what they mean.
struct Layout {
    config: Value,
    file: Vec<u8>,
}

fn layout(config: Value, tensors: &[(&str, Dtype, &[usize])]) -> Layout {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let n_bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            match *name {
                // All columns are of the first group.
                "g_idx" => vec![0; n_bytes],
                "weight_shape" => SHAPE.iter().flat_map(|n| n.to_le_bytes()).collect(),
                _ => (0..=255).cycle().take(n_bytes).collect(),
            }
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
        (format!("l.{name}"), Stored::new(*dtype, shape.to_vec(), data).unwrap())
    });
    Layout {
        config: json!({ "quantization_config": config }),
        file: safetensors::serialize(views, None).unwrap(),
    }
}

fn compressed(format: &str, weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

fn floats() -> Vec<Layout> {
    let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 32]});
    let channels = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true});
    let groups = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16});
    let blocks = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 32]});
    let mx = |bits: u32| json!({"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32});
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16});
    vec![
        layout(fp8, &[("weight", Dtype::F8_E4M3, &SHAPE), ("weight_scale_inv", Dtype::F32, &[2, 2])]),
        layout(
            compressed("float-quantized", &channels),
            &[("weight", Dtype::F8_E4M3, &SHAPE), ("weight_scale", Dtype::BF16, &[16, 1])],
        ),
        layout(
            compressed("float-quantized", &blocks),
            &[("weight", Dtype::F8_E4M3, &SHAPE), ("weight_scale", Dtype::BF16, &[2, 2])],
        ),
        layout(
            compressed("mxfp8-quantized", &mx(8)),
            &[("weight", Dtype::F8_E4M3, &SHAPE), ("weight_scale", Dtype::U8, &[16, 2])],
        ),
        layout(
            compressed("mxfp4-pack-quantized", &mx(4)),
            &[("weight_packed", Dtype::U8, &[16, 32]), ("weight_scale", Dtype::U8, &[16, 2])],
        ),
        layout(
            compressed("nvfp4-pack-quantized", &groups),
            &[
                ("weight_packed", Dtype::U8, &[16, 32]),
                ("weight_scale", Dtype::F8_E4M3, &[16, 4]),
                ("weight_global_scale", Dtype::F32, &[1]),
            ],
        ),
        layout(
            modelopt,
            &[
                ("weight", Dtype::U8, &[16, 32]),
                ("weight_scale", Dtype::F8_E4M3, &[16, 4]),
                ("weight_scale_2", Dtype::F32, &[]),
            ],
        ),
    ]
}

fn integers() -> Vec<Layout> {
    let awq =
        json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"});
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true, "sym": false});
    let gemv = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"});
    let continuous =
        json!({"quant_method": "gptq", "bits": 3, "group_size": 32, "checkpoint_format": "gptq_v2"});
    let group = |bits: u32| json!({"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false});
    let eight = json!({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true});
    vec![
        layout(
            awq,
            &[
                ("qweight", Dtype::I32, &[64, 2]),
                ("qzeros", Dtype::I32, &[2, 2]),
                ("scales", Dtype::F16, &[2, 16]),
            ],
        ),
        layout(
            gptq,
            &[
                ("qweight", Dtype::I32, &[8, 16]),
                ("qzeros", Dtype::I32, &[2, 2]),
                ("scales", Dtype::F16, &[2, 16]),
                ("g_idx", Dtype::I32, &[64]),
            ],
        ),
        layout(
            json!({"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"}),
            &[
                ("qweight", Dtype::I32, &[8, 16]),
                ("qzeros", Dtype::I32, &[2, 2]),
                ("scales", Dtype::F16, &[2, 16]),
            ],
        ),
        layout(
            gemv,
            &[
                ("qweight", Dtype::I32, &[16, 8]),
                ("qzeros", Dtype::I32, &[16, 4]),
                ("scales", Dtype::F16, &[16, 32]),
            ],
        ),
        layout(
            continuous,
            &[
                ("qweight", Dtype::I32, &[6, 16]),
                ("qzeros", Dtype::I32, &[2, 2]),
                ("scales", Dtype::F16, &[2, 16]),
            ],
        ),
        layout(
            compressed("pack-quantized", &group(4)),
            &[
                ("weight_packed", Dtype::I32, &[16, 8]),
                ("weight_scale", Dtype::BF16, &[16, 2]),
                ("weight_zero_point", Dtype::I32, &[2, 2]),
            ],
        ),
        layout(
            compressed("pack-quantized", &group(3)),
            &[
                ("weight_packed", Dtype::I32, &[16, 6]),
                ("weight_shape", Dtype::I64, &[2]),
                ("weight_scale", Dtype::BF16, &[16, 2]),
                ("weight_zero_point", Dtype::I32, &[2, 2]),
            ],
        ),
        layout(
            compressed("int-quantized", &group(4)),
            &[
                ("weight", Dtype::I8, &SHAPE),
                ("weight_scale", Dtype::BF16, &[16, 2]),
                ("weight_zero_point", Dtype::I8, &[16, 2]),
            ],
        ),
        layout(
            compressed("int-quantized", &eight),
            &[("weight", Dtype::I8, &SHAPE), ("weight_scale", Dtype::F32, &[16, 1])],
        ),
    ]
}

fn layouts() -> Vec<Layout> {
    floats().into_iter().chain(integers()).collect()
}

fn scheme(config: &Value) -> Result<Option<Scheme>, String> {
    let scheme = Scheme::of_config(config.as_object().ok_or("no object")?);
    scheme.map_err(|error| {
        let error = error.to_string();
        assert!(error.len() < 500, "a short message");
        error
    })
}

/// Decodes all layers: each is refused, or has the bytes of its shape. The number of those that were decoded,
/// if the file was read.
fn decode(file: &[u8], scheme: Scheme, shape: [usize; 2]) -> Option<usize> {
    // Twice the matrix as floats.
    const DECODED_BYTES: usize = 2 * SHAPE[0] * SHAPE[1] * size_of::<f32>();
    within_bounds(file.len() + DECODED_BYTES, || {
        let folder = QuantizedFolder::new(SafetensorsFolder::parse_any(file).ok()?, scheme);
        let layers: Vec<_> =
            folder.encoded_names().iter().filter_map(|name| folder.decode(name, shape)?.ok()).collect();
        for layer in &layers {
            assert_eq!(Some(layer.data.len()), layer.format.bytes_of(shape[1]).map(|n| n * shape[0]));
        }
        Some(layers.len())
    })
}

#[test]
fn layers_cut_anywhere_are_refused() {
    for Layout { config, file } in layouts() {
        let scheme = scheme(&config).unwrap().unwrap();
        assert_eq!(decode(&file, scheme.clone(), SHAPE), Some(1), "{config}");
        for n in 0..file.len() {
            assert_eq!(decode(&file[..n], scheme.clone(), SHAPE), None, "{config}: cut at {n}");
        }
    }
}

#[test]
fn layers_with_any_bit_flipped_are_refused_or_have_their_shape() {
    for Layout { config, file } in layouts() {
        let scheme = scheme(&config).unwrap().unwrap();
        let n_header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let (mut damaged, mut n_decoded) = (file.clone(), [0, 0]);
        for bit in 0..file.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_data = usize::from(bit / 8 >= n_header);
            n_decoded[is_data] += decode(&damaged, scheme.clone(), SHAPE).unwrap_or(0);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        println!("{config}: decoded with a flip in header, data: {n_decoded:?}");
        // A flip in a name, a type, a shape or a place is never accepted; one in a number is another number, but for groups.
        assert!(
            n_decoded[0] < n_header && n_decoded[1] > (file.len() - n_header) * 4,
            "{config}: {n_decoded:?}"
        );
    }
}

#[test]
fn layers_of_another_shape_are_refused() {
    let extremes = [0, 1, 8, 56, 128, 1 << 31, 1 << 32, 1 << 62, usize::MAX];
    for Layout { config, file } in layouts() {
        let scheme = scheme(&config).unwrap().unwrap();
        for rows in extremes.into_iter().chain([SHAPE[0]]) {
            for cols in extremes.into_iter().chain([SHAPE[1]]).filter(|cols| [rows, *cols] != SHAPE) {
                assert_eq!(decode(&file, scheme.clone(), [rows, cols]), Some(0), "{config}: {rows} x {cols}");
            }
        }
    }
}

/// Calls `each` with the configuration, each of its values in turn replaced by each of some extreme ones.
fn with_extremes(config: &Value, each: &mut dyn FnMut(&Value)) {
    let extremes = [
        json!(null),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(1.5),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1u64 << 32),
        json!(true),
        json!("x".repeat(10_000)),
        json!([]),
        json!([0, 0]),
        json!([u64::MAX, u64::MAX]),
        json!({}),
    ];
    let mut paths = Vec::new();
    let mut queue = vec![(String::new(), config)];
    while let Some((path, value)) = queue.pop() {
        match value {
            Value::Object(map) => {
                queue.extend(map.iter().map(|(key, value)| (format!("{path}/{key}"), value)))
            }
            Value::Array(list) => {
                queue.extend(list.iter().enumerate().map(|(i, value)| (format!("{path}/{i}"), value)));
            }
            _ => {}
        }
        paths.push(path);
    }
    for path in paths {
        for extreme in &extremes {
            let mut damaged = config.clone();
            *damaged.pointer_mut(&path).unwrap() = extreme.clone();
            each(&damaged);
        }
    }
}

#[test]
fn extreme_values_in_a_configuration_are_refused_or_change_nothing_else() {
    for Layout { config, file } in layouts() {
        let (mut n_refused, mut n_read) = (0, 0);
        with_extremes(&config, &mut |damaged| match scheme(damaged) {
            Ok(Some(scheme)) => {
                n_read += 1;
                decode(&file, scheme, SHAPE);
            }
            Ok(None) => {}
            Err(_) => n_refused += 1,
        });
        println!("{config}: {n_refused} refused, {n_read} read");
        assert!(n_refused > n_read / 4, "{config}: {n_refused} refused, {n_read} read");
    }
}

#[test]
fn a_configuration_with_any_bit_flipped_is_refused_or_read() {
    for Layout { config, file } in layouts() {
        let text = config.to_string().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(damaged) = serde_json::from_slice(&damaged) else { continue };
            if let Ok(Some(scheme)) = scheme(&damaged) {
                decode(&file, scheme, SHAPE);
            }
        }
    }
}
