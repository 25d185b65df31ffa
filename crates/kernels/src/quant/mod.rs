//! Weight formats: what the bytes of a tensor mean, and how they are packed for the matmul lanes.

mod block_codes;
mod codebook;
mod dequantize;
mod dequantize_k;
mod float_pairs;
mod format;
mod layout;
mod packed;
mod pairs;
mod path;
mod quantize;
mod quantize_k;
mod quantize_rows;
mod search;
mod unpack;

pub use dequantize::dequantize_row;
pub use format::Format;
pub use packed::{PACKING_VERSION, PackError, PackedMatrix};
pub use path::MatrixPath;
pub use quantize::quantize_row;
pub use quantize_rows::{QUANTIZER_VERSION, quantize_rows};

use codebook::IQ4_VALUES;
pub(crate) use layout::{BLOCK, CodeLayout, PANEL, PanelLayout, ScaleKind};
pub(crate) use pairs::{PAIRS_BYTES, PairUnpacker, WithUnpacker};
pub(crate) use unpack::{Unpack, Unpacked, code_sums, unpacked_block_bytes};

/// Bytes `at..at + 2` as an f16 widened to f32.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
