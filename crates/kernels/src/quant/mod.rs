//! Weight formats: what the bytes of a tensor mean, and how they are packed for the matmul ISAs.

mod amx_unpack;
mod block_codes;
mod codebook;
mod compute_path;
mod dequantize;
mod dequantize_k;
mod e4m3;
mod grids;
mod packed;
mod pair_scale;
mod quantize;
mod quantize_rows;
mod scale_search;
mod stored_block;
mod unpack;

pub use crate::layout::Format;
pub use compute_path::ComputePath;
pub use dequantize::dequantize_row;
pub use e4m3::e4m3_number;
pub use packed::{PACKING_VERSION, PackError, PackedMatrix};
pub use quantize::quantize_row;
pub use quantize_rows::{QUANTIZER_VERSION, quantize_rows};

pub(crate) use crate::layout::{BLOCK, CodeLayout, PANEL, PanelLayout};
pub(crate) use amx_unpack::{AmxUnpacker, WithUnpacker};
use codebook::{E2M1_VALUES, IQ4_VALUES};
pub(crate) use e4m3::e4m3_scale;
pub(crate) use unpack::{
    Unpack, Unpacked, code_sums, gather, scale_and_min, unpacked_block_bytes, with_offset,
};

/// Bytes `at..at + 4` as an f32.
fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Bytes `at..at + 2` as an f16 widened to f32.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
