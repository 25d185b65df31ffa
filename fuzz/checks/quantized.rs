//! Any bytes as a layer of a quantized checkpoint: the first says which layout, the next two rows and
//! columns, the rest is a safetensors file. The layer, or the second of two experts in one tensor, is
//! refused, or every row of it has exactly the bytes of its format.

use throng_checkpoint::TensorSource;
use throng_checkpoint::quantized::{ExpertRows, QuantizedBy, QuantizedFolder, Scheme};
use throng_checkpoint::safetensors::SafetensorsFolder;

const LAYOUTS: [QuantizedBy; 15] = [
    QuantizedBy::Fp8Blocks { block: [4, 8] },
    QuantizedBy::Fp8Rows,
    QuantizedBy::Nvfp4 { is_modelopt: false },
    QuantizedBy::Nvfp4 { is_modelopt: true },
    QuantizedBy::Awq { group: Some(32) },
    QuantizedBy::Gptq { bits: 4, group: Some(32), zeros_are_less_one: true },
    QuantizedBy::Packed { bits: 4, group: None, is_symmetric: true },
    QuantizedBy::Packed { bits: 8, group: Some(16), is_symmetric: false },
    QuantizedBy::Int8 { group: None, is_symmetric: true },
    QuantizedBy::Int8 { group: Some(16), is_symmetric: false },
    QuantizedBy::Packed { bits: 3, group: Some(32), is_symmetric: false },
    QuantizedBy::Mxfp8,
    QuantizedBy::Mxfp4,
    QuantizedBy::AwqGemv { group: Some(32) },
    QuantizedBy::Gptq { bits: 3, group: Some(32), zeros_are_less_one: false },
];

/// Panics when a decoder violates its contract.
pub fn check(bytes: &[u8]) {
    if let Ok(config) = serde_json::from_slice(bytes) {
        let _ = Scheme::of_config(&config);
    }
    let [layout, rows, cols, file @ ..] = bytes else { return };
    let Ok(folder) = SafetensorsFolder::parse_any(file) else { return };
    let (by, shape) =
        (LAYOUTS[usize::from(*layout) % LAYOUTS.len()], [rows, cols].map(|n| usize::from(*n).max(1)));
    let folder = QuantizedFolder::new(folder, Scheme::of_all("fuzzed", by));
    for name in folder.encoded_names() {
        let (is_transposed, [n, _]) = (layout & 128 != 0, shape);
        let rows = ExpertRows { expert_idx: 1, n_experts: 2, shape, is_transposed, first: 0, n, step: 1 };
        let decoded = folder.decode(&name, shape).or_else(|| folder.decode_expert(&name, rows));
        if let Ok(decoded) = decoded.expect("it is listed") {
            assert_eq!(Some(decoded.data.len()), decoded.format.bytes_of(shape[1]).map(|n| n * shape[0]));
        }
    }
}
