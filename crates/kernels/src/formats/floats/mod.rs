//! Formats of floats: F32, F16 and BF16, and E4M3 with scales.

pub(super) mod bf16;
pub(crate) mod e4m3;
pub(super) mod f16;
pub(super) mod f32;
pub(super) mod fp8;
pub(super) mod mxfp8;
