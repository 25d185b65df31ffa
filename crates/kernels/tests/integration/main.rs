//! The tests of `throng-kernels` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod attention;
mod e4m3;
mod formats;
mod fused;
mod logits_reduce;
mod low_rank;
mod matmul;
mod packed;
mod quantize_rows;
mod recurrent;
mod rows;
mod support;
mod threads;
