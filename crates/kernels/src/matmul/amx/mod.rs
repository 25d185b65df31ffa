//! Matrix products in AMX tiles of bf16: the GEMM for many tokens, the one for small batches, and their
//! common epilogue. Does not know quantization formats.

mod epilogue;
pub(super) mod gemm;
mod gemm_small_batch;
mod product;

pub(super) use product::AmxGemm;
