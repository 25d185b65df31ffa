//! Weight formats: what the bytes of a tensor mean, and how they are packed for the matmul lanes.

mod codebook;
mod dequantize;
mod dequantize_k;
mod format;
mod quantize;
mod quantize_k;

pub use dequantize::dequantize_row;
pub use format::Format;
pub use quantize::quantize_row;

use codebook::IQ4_VALUES;

/// Bytes `at..at + 2` as an f16 widened to f32.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
