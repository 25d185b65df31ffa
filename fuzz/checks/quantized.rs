//! Any bytes as a layer of a quantized checkpoint: the first says which layout, the next two rows and
//! columns, the rest is a safetensors file. The layer, or the second of two experts in one tensor, is
//! refused, or every row of it has exactly the bytes of its format.

use throng_checkpoint::TensorSource;
use throng_checkpoint::quantized::{ExpertRows, Layout, QuantizedFolder, Scheme};
use throng_checkpoint::safetensors::SafetensorsFolder;

const LAYOUTS: [Layout; 15] = [
    Layout::fp8_blocks([4, 8]),
    Layout::FP8_ROWS,
    Layout::NVFP4,
    Layout::NVFP4_MODELOPT,
    Layout::awq(Some(32)),
    Layout::gptq(4, Some(32)),
    Layout::packed(4, None, true),
    Layout::packed(8, Some(16), false),
    Layout::int8(None, true),
    Layout::int8(Some(16), false),
    Layout::packed(3, Some(32), false),
    Layout::MXFP8,
    Layout::MXFP4,
    Layout::awq_gemv(Some(32)),
    Layout::gptq_v2(3, Some(32)),
];

/// Panics when a decoder violates its contract.
pub fn check(bytes: &[u8]) {
    if let Ok(config) = serde_json::from_slice(bytes) {
        let _ = Scheme::of_config(&config);
    }
    let [number, rows, cols, file @ ..] = bytes else { return };
    let Ok(folder) = SafetensorsFolder::parse_any(file) else { return };
    let (layout, shape) =
        (LAYOUTS[usize::from(*number) % LAYOUTS.len()], [rows, cols].map(|n| usize::from(*n).max(1)));
    let folder = QuantizedFolder::new(folder, Scheme::of_all("fuzzed", layout));
    for name in folder.encoded_names() {
        let (is_transposed, [n, _]) = (number & 128 != 0, shape);
        let rows = ExpertRows { expert_idx: 1, n_experts: 2, shape, is_transposed, first: 0, n, step: 1 };
        let decoded = folder.decode(&name, shape).or_else(|| folder.decode_expert(&name, rows));
        if let Ok(decoded) = decoded.expect("it is listed") {
            assert_eq!(Some(decoded.data.len()), decoded.format.bytes_of(shape[1]).map(|n| n * shape[0]));
        }
    }
}
