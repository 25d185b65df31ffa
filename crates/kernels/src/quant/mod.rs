//! Packed weights: stored tensors repacked into panels for the matmul ISAs, and unpacked again.

mod amx_unpack;
mod compute_path;
mod e4m3;
mod packed;
mod pair_scale;
mod quantize_rows;
mod scale_search;
mod unpack;

pub use crate::formats::e4m3::e4m3_number;
pub use crate::formats::{Format, dequantize_row, quantize_row};
pub use compute_path::ComputePath;
pub use packed::{PACKING_VERSION, PackError, PackedMatrix};
pub use quantize_rows::{QUANTIZER_VERSION, quantize_rows};

pub(crate) use crate::layout::{BLOCK, PANEL};
pub(crate) use amx_unpack::{AmxUnpacker, WithUnpacker};
pub(crate) use e4m3::e4m3_scale;
pub(crate) use unpack::{
    Unpack, Unpacked, code_sums, gather, scale_and_min, unpacked_block_bytes, with_offset,
};
